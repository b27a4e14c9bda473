// What the benchmark `queues` measures BullMQ with.
//
//   node main.js fill REDIS COUNT AT SPREAD     jobs with deadlines from AT (ms), over SPREAD ms
//   node main.js work REDIS SCRIPT JOBS [URL]   run them, so many at a time
//
// `work` says `ready` when it is, and runs until it is killed.
import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import http from "node:http";

import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";

const QUEUE = "expire";
const AMOUNT = 500;
// Key of the signature; each worker signs as sweeperd does.
const SECRET = "0123456789abcdef0123456789abcdef";
const TENANT = "budget:tenant:acme";
const BUDGETS = [
  `${TENANT}:TOKENS`,
  `${TENANT}/workspace:prod:TOKENS`,
  `${TENANT}/workspace:prod/app:chat:TOKENS`,
  `${TENANT}/workspace:prod/app:chat/agent:support:TOKENS`,
];
// How many jobs are added in one round trip.
const PIECE = 500;

const connect = (url) => new Redis(url, { maxRetriesPerRequest: null });

async function fill(url, count, at, spread) {
  const connection = connect(url);
  const queue = new Queue(QUEUE, { connection });
  for (let first = 0; first < count; first += PIECE) {
    const jobs = [];
    for (let each = first; each < Math.min(first + PIECE, count); each++) {
      const id = String(each).padStart(36, "0");
      const due = at + Math.floor((each * spread) / count);
      // A job id that is a whole number is refused.
      const opts = { jobId: `h-${id}`, delay: Math.max(0, due - Date.now()), removeOnComplete: true };
      jobs.push({ name: QUEUE, data: { id, expires_at: due }, opts });
    }
    await queue.addBulk(jobs);
  }
  await queue.close();
  connection.disconnect();
}

async function work(url, path, concurrency, hook) {
  const client = connect(url);
  client.defineCommand("release", { lua: readFileSync(path, "utf8") });
  const agent = new http.Agent({ keepAlive: true, maxSockets: concurrency });
  const run = async ({ data }) => {
    const keys = [`bench:released:${data.id}`, "bench:events", ...BUDGETS];
    const released = await client.release(keys.length, ...keys, data.id, data.expires_at, AMOUNT);
    if (released && hook) await tell(agent, hook, data);
  };
  const worker = new Worker(QUEUE, run, { connection: connect(url), concurrency });
  worker.on("error", (error) => console.error(String(error)));
  await worker.waitUntilReady();
  console.log("ready");
}

function tell(agent, hook, due) {
  const body = JSON.stringify({
    event_id: due.id,
    event_type: "reservation.expired",
    category: "reservation",
    timestamp: new Date().toISOString(),
    tenant_id: "acme",
    scope: "tenant:acme/workspace:prod/app:chat/agent:support",
    actor: { type: "system" },
    source: "worker",
    data: {
      reservation_id: due.id,
      unit: "TOKENS",
      estimated_amount: AMOUNT,
      expires_at: new Date(due.expires_at).toISOString(),
    },
  });
  const timestamp = String(Math.floor(Date.now() / 1000));
  const signature = createHmac("sha256", SECRET).update(`${due.id}.${timestamp}.${body}`).digest("base64");
  const headers = {
    "Content-Type": "application/json",
    "Content-Length": Buffer.byteLength(body),
    "webhook-id": due.id,
    "webhook-timestamp": timestamp,
    "webhook-signature": `v1,${signature}`,
  };
  return new Promise((resolve, reject) => {
    const request = http.request(hook, { method: "POST", agent, headers, timeout: 30_000 }, (answer) => {
      answer.resume();
      answer.on("end", () =>
        answer.statusCode < 300 ? resolve() : reject(new Error(`the receiver answers ${answer.statusCode}`)),
      );
    });
    request.on("timeout", () => request.destroy(new Error("no answer in time")));
    request.on("error", reject);
    request.end(body);
  });
}

const [command, url, ...rest] = process.argv.slice(2);
if (command === "fill") await fill(url, ...rest.map(Number));
else await work(url, rest[0], Number(rest[1]), rest[2]);
