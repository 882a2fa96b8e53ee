// Gets one URL through the proxy of the environment, with Node's own roots and those that the environment adds.
import http from "node:http";
import https from "node:https";
import tls from "node:tls";

const url = new URL(process.argv[2]);
const proxy = new URL(process.env.HTTPS_PROXY);

function fail(error) {
  console.error(String(error));
  process.exit(1);
}

const connect = http.request({ host: proxy.hostname, port: proxy.port, method: "CONNECT", path: url.host });
connect.on("error", fail);
connect.on("connect", (answer, socket) => {
  if (answer.statusCode !== 200) fail(`CONNECT: ${answer.statusCode}`);
  const createConnection = () => tls.connect({ socket, servername: url.hostname });
  https
    .get(url, { createConnection }, (answer) => answer.pipe(process.stdout))
    .on("error", fail);
});
connect.end();
