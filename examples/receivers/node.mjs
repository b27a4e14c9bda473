// A receiver without packages. Node 18 or newer. JSON.parse rounds integers above 2^53: if amounts can be that large, use
// a parser that returns BigInt.
import crypto from "node:crypto";
import http from "node:http";

const key = Buffer.from(process.env.WEBHOOK_SECRET.replace(/^whsec_/, ""), "base64");
const seen = new Set(); // use a database with a unique key in production

function verified(headers, body) {
  const id = headers["webhook-id"];
  const timestamp = headers["webhook-timestamp"];
  if (!id || Math.abs(Date.now() / 1000 - Number(timestamp)) > 300) return false;
  const mac = crypto.createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
  return (headers["webhook-signature"] ?? "").split(" ").some((signature) => {
    const [version, text] = signature.split(",");
    const given = Buffer.from(text ?? "", "base64");
    return version === "v1" && given.length === mac.length && crypto.timingSafeEqual(given, mac);
  });
}

http
  .createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const body = Buffer.concat(chunks);
      if (!verified(request.headers, body)) return response.writeHead(401).end();
      const id = request.headers["webhook-id"];
      if (!seen.has(id)) {
        const event = JSON.parse(body);
        seen.add(id);
        if (event.event_type.endsWith(".expired")) console.log(event.event_type, event.data.reservation_id ?? event.data.id);
      }
      response.writeHead(204).end();
    });
  })
  .listen(Number(process.env.PORT ?? 8080), "127.0.0.1");
