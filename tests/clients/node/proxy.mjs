// Node's http and https through a proxy, as proxy agents do it. Each call prints one line of JSON; the test judges.
import fs from "node:fs";
import http from "node:http";
import https from "node:https";
import { parseArgs } from "node:util";

const text = { type: "string" };
const { values: to } = parseArgs({ options: { url: text, secure: text, proxy: text, ca: text } });
const [host, port] = to.proxy.split(":");
const agent = new http.Agent({ keepAlive: true });
const headers = { "User-Agent": "node-test" };

function status(request) {
  return new Promise((resolve, reject) => {
    request.on("error", reject);
    request.on("response", (response) => {
      response.resume();
      response.on("end", () => resolve(response.statusCode));
    });
    request.end();
  });
}

function plain(path) {
  const url = new URL(path, to.url);
  return status(http.request({ host, port, agent, path: url.href, headers: { ...headers, Host: url.host } }));
}

function secure(path) {
  const url = new URL(path, to.secure);
  return new Promise((resolve, reject) => {
    // Node names the proxy in Host here, unless told otherwise.
    const connect = http.request({ host, port, method: "CONNECT", path: url.host });
    connect.on("error", reject);
    connect.on("connect", (answer, socket) => {
      if (answer.statusCode !== 200) return resolve(answer.statusCode);
      const options = { socket, agent: false, ca: fs.readFileSync(to.ca), servername: url.hostname, headers };
      const request = https.request(url, options);
      status(request).then((code) => (socket.destroy(), resolve(code)), reject);
    });
    connect.end();
  });
}

async function call(name, run, path) {
  console.log(JSON.stringify({ call: name, status: await run(path) }));
}

await call("get", plain, "/files/hello");
await call("secure", secure, "/files/hello");
await call("denied", plain, "/secret");
await call("again", plain, "/files/hello");
agent.destroy();
