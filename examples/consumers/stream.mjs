// Reads the event stream with a consumer group. Needs `npm install redis`.
import { createClient } from "redis";

const [stream, group, name] = ["sweeperd:events", "warehouse", `reader-${process.pid}`];
const client = await createClient({ url: process.env.REDIS_URL }).connect();
await client.xGroupCreate(stream, group, "0", { MKSTREAM: true }).catch((error) => {
  if (!error.message.startsWith("BUSYGROUP")) throw error;
});

for (;;) {
  const left = await client.xAutoClaim(stream, group, name, 60_000, "0-0", { COUNT: 100 });
  const read = await client.xReadGroup(group, name, { key: stream, id: ">" }, { COUNT: 100, BLOCK: 5_000 });
  const entries = [...left.messages.filter(Boolean), ...(read?.flatMap(({ messages }) => messages) ?? [])];
  for (const { id, message } of entries) {
    if (!message.only_for && !message.data) console.log("expired", message.id, message.amount);
    await client.xAck(stream, group, id);
  }
}
