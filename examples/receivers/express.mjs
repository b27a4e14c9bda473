// A receiver with Express. Needs `npm install express standardwebhooks`.
import express from "express";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.WEBHOOK_SECRET);
const seen = new Set();

express()
  .post("/", express.raw({ type: () => true }), (request, response) => {
    try {
      const event = webhook.verify(request.body, request.headers);
      const duplicate = seen.has(request.headers["webhook-id"]);
      seen.add(request.headers["webhook-id"]);
      if (!duplicate && event.event_type.endsWith(".expired"))
        console.log(event.event_type, event.data.reservation_id ?? event.data.id);
      response.sendStatus(204);
    } catch {
      response.sendStatus(401);
    }
  })
  .listen(Number(process.env.PORT ?? 8080), "127.0.0.1");
