// Node's own https, http and http2 modules. Each call prints one line of JSON; the test judges.

import { readFileSync } from "node:fs";
import http from "node:http";
import http2 from "node:http2";
import https from "node:https";
import net from "node:net";
import tls from "node:tls";
import { parseArgs } from "node:util";

const option = { type: "string", default: "" };
const { values: to } = parseArgs({
  options: { url: option, connect: option, ca: option, cert: option, key: option, protocol: option },
});
const base = new URL(to.url);
const secure = base.protocol === "https:";
const body = Buffer.from(Uint8Array.from({ length: 1 << 20 }, (_, i) => i % 251));

const credentials = secure ? { ca: readFileSync(to.ca), servername: base.hostname } : {};
if (to.cert) {
  credentials.cert = readFileSync(to.cert);
  credentials.key = readFileSync(to.key);
}

/** HTTP/1.1: an agent that keeps its connections. */
function http1() {
  const module = secure ? https : http;
  const agent = new module.Agent({ keepAlive: true, maxSockets: 1 });
  const many = new module.Agent({ keepAlive: true });
  const send = (method, path, headers, payload, agentToUse = agent) =>
    new Promise((resolve, reject) => {
      const request = module.request({
        host: to.connect,
        port: base.port,
        method,
        path,
        agent: agentToUse,
        headers: { host: base.host, ...headers },
        ...credentials,
      });
      const got = { continued: false };
      request.on("error", reject);
      request.on("response", (response) => {
        const parts = [];
        response.on("error", reject);
        response.on("data", (part) => parts.push(part));
        response.on("end", () => {
          Object.assign(got, {
            status: response.statusCode,
            protocol: `HTTP/${response.httpVersion}`,
            headers: response.headers,
            body: Buffer.concat(parts),
            trailers: response.trailers,
          });
          resolve(got);
        });
      });
      give(request, headers, payload, got);
    });
  const close = () => [agent, many].forEach((each) => each.destroy());
  return { send, many: (method, path) => send(method, path, {}, undefined, many), close };
}

/** HTTP/2: one session. */
function http2session() {
  const dial = () =>
    secure
      ? tls.connect({ host: to.connect, port: base.port, ALPNProtocols: ["h2"], ...credentials })
      : net.connect({ host: to.connect, port: base.port });
  const session = http2.connect(to.url, { createConnection: dial });
  const gone = new Promise((_, reject) => session.on("error", reject));
  const send = (method, path, headers, payload) =>
    Promise.race([
      gone,
      new Promise((resolve, reject) => {
        const request = session.request(
          { ":method": method, ":path": path, ...headers },
          { endStream: payload === undefined },
        );
        const got = { continued: false, protocol: "HTTP/2.0", trailers: {} };
        const parts = [];
        request.on("error", reject);
        request.on("response", (fields) => Object.assign(got, { status: fields[":status"], headers: fields }));
        request.on("trailers", (fields) => Object.assign(got, { trailers: fields }));
        request.on("data", (part) => parts.push(part));
        request.on("end", () => resolve(Object.assign(got, { body: Buffer.concat(parts) })));
        give(request, headers, payload, got);
      }),
    ]);
  return { send, many: (method, path) => send(method, path, {}), close: () => session.close() };
}

/** Sends the body, at once or when the server says that it wants it. */
function give(request, headers, payload, got) {
  if (payload === undefined) {
    request.end();
  } else if (headers.expect) {
    request.on("continue", () => {
      got.continued = true;
      request.end(payload);
    });
  } else {
    // In two pieces, so that no length can be known before.
    request.write(payload.subarray(0, 1000));
    request.end(payload.subarray(1000));
  }
}

async function call(name, run) {
  let fields;
  try {
    fields = await run();
  } catch (error) {
    fields = { error: String(error) };
  }
  console.log(JSON.stringify({ call: name, ...fields }));
}

function fieldsOf(got) {
  const problem = got.status === 403 ? JSON.parse(got.body).status : 0;
  return {
    status: got.status,
    protocol: got.protocol,
    length: got.body.length,
    content_length: got.headers["content-length"] ?? "",
    type: got.headers["content-type"] ?? "",
    decision_id: got.headers["x-nova-decision-id"] ?? "",
    problem_status: problem,
  };
}

async function echo(client, headers) {
  const got = await client.send("POST", "/v1/orders/echo", { te: "trailers", ...headers }, body);
  const fields = { same: got.body.equals(body), trailer: got.trailers["x-length"] ?? "", continued: got.continued };
  return { ...fieldsOf(got), ...fields };
}

const client = to.protocol === "h2" ? http2session() : http1();
const plain = (method, path) => async () => fieldsOf(await client.send(method, path, {}));
await call("get", async () => {
  const got = await client.send("GET", "/v1/orders/42?color=blue&color=%20red", {});
  return { ...fieldsOf(got), body: got.body.toString() };
});
await call("echo", () => echo(client, {}));
await call("expect", () => echo(client, { expect: "100-continue" }));
await call("head", plain("HEAD", "/v1/orders/42"));
await call("none", plain("GET", "/v1/orders/none"));
await call("denied", plain("DELETE", "/v1/orders/42"));
await call("reuse", async () => {
  const statuses = [];
  for (let i = 0; i < 20; i += 1) statuses.push((await client.send("GET", `/v1/orders/${i}`, {})).status);
  return { statuses };
});
// The app answers none of these before it has all of them.
await call("together", async () => {
  const all = Array.from({ length: 8 }, () => client.many("GET", "/v1/orders/together"));
  return { statuses: (await Promise.all(all)).map((got) => got.status) };
});
await call("denied_upload", async () => fieldsOf(await client.send("POST", "/v2/upload", {}, body)));
client.close();
