// Search, an entry, recent expiries, dead letters, quarantine: asks for the document of the page's own name and shows it.

  const page = location.pathname.split("/").pop();
  const asked = new URLSearchParams(location.search);
  const NAMES = { search: "Search", entry: "Entry", expired: "Recent expiries", "dead-letters": "Dead letters", quarantine: "Quarantine" };

  const moment = (text) => (text === null ? "" : text.replace("T", " ").replace("Z", " UTC"));

  // The same list with other parts of the question.
  const further = (parts, text) => link(page, { ...Object.fromEntries(asked), ...parts }, text);

  function table(heads, rows) {
    const body = rows.map((row) =>
      element("tr", "", ...row.map((content, number) => {
        const cell = element("td", "", content instanceof Node ? content : visible(content ?? ""));
        cell.dataset.label = heads[number];
        return cell;
      })));
    const head = element("tr", "", ...heads.map((text) => element("th", "", text)));
    return element("table", "list", element("thead", "", head), element("tbody", "", ...body));
  }

  function section(title, ...children) {
    return element("section", "part", element("h3", "", visible(title)), ...children);
  }

  const none = (text) => element("p", "none", text);

  function commands(lines) {
    const box = element("div", "commands");
    for (const line of lines) {
      const command = new Command();
      command.show(line);
      box.append(command.root);
    }
    return box;
  }

  // A time in ms is shown as people read it too.
  const timed = (name, value) => (/_at$/.test(name) && /^\d{11,15}$/.test(value) ? `${value} (${moment(new Date(Number(value)).toISOString())})` : value);

  // Names and values of an object.
  const values = (fields) => table(["name", "value"], Object.entries(fields).map(([name, value]) => [name, timed(name, value)]));

  function looked(shard, { read, back_to: back, complete, before }, what, found = false) {
    if (!read && found) return none("Found by its recorded attempts.");
    const text = read
      ? `${plural(read, what, `${what}s`)} read, back to ${moment(back)}${complete ? ": there is no older one" : ""}. `
      : `There is no ${what}${asked.get("before") ? " before that" : ""}. `;
    const line = element("p", "none", text);
    if (before) line.append(further({ shard, before }, "Look further back"));
    return line;
  }

  const entryLink = (row, shard) => (row.kind === null ? row.event_type : link("entry", { shard, kind: row.kind, id: row.id }, row.id || "(empty id)"));
  const tenantLink = (row) => (row.tenant ? link(page === "search" ? "expired" : page, { tenant: row.tenant }, row.tenant) : "");

  function events(rows, shard) {
    return table(
      ["expired", "entry", "kind", "tenant", "event"],
      rows.map((row) => [moment(row.at), entryLink(row, shard), row.kind ?? "", tenantLink(row), link("entry", { shard, id: row.stream_id }, row.event_id)]),
    );
  }

  function attempts(list) {
    return table(
      ["at", "endpoint", "result", "ms", "attempt", "events", "answer", "by"],
      list.map((each) => [
        moment(each.at), each.endpoint, each.reason || each.result, counted.format(each.milliseconds),
        `${each.hand_over}.${each.attempt}`, each.events, each.answer, each.replica,
      ]),
    );
  }

  function batch(found) {
    return section(
      `Batch ${found.webhook_id}: ${plural(found.count, "event", "events")} to ${found.endpoint}`,
      ...(found.exact ? [] : [none("Not certain: the events that the endpoint asks for, between the first and the last.")]),
      events(found.events, found.shard), attempts(found.attempts),
    );
  }

  function fate(delivery) {
    const parts = [delivery.fate];
    if (delivery.owner) parts.push(`in hand of ${delivery.owner}`);
    if (delivery.hand_overs) parts.push(plural(delivery.hand_overs, "hand-over", "hand-overs"));
    if (delivery.fate === "pending") {
      parts.push(delivery.idle_seconds === null ? "due now" : `the last ${span(delivery.idle_seconds)} ago`);
    }
    if (delivery.reason) parts.push(delivery.reason);
    return parts.join(" · ");
  }

  function event(told) {
    return [
      section(`Event ${told.webhook_id}`, values({ "stream id": told.stream_id, ...told.fields })),
      section("Deliveries", told.deliveries.length
        ? table(["endpoint", "state"], told.deliveries.map((each) => [each.endpoint, fate(each)])) : none("There is no endpoint.")),
      section("Attempts", told.attempts.length ? attempts(told.attempts) : none("None is recorded.")),
    ];
  }

  const condition = (entry) => (entry.quarantined_at !== null ? "quarantined" : entry.fields.state || entry.sweep.outcome);

  function entry(found) {
    const { sweep, fields, budgets } = found;
    const place = {
      key: found.key,
      ...(found.type === "hash" ? {} : { type: found.type }),
      "in the index": found.score === null ? "no" : moment(new Date(found.score).toISOString()),
      ...(found.quarantined_at === null ? {} : { "in quarantine since": moment(found.quarantined_at) }),
      ...(found.ttl_ms === null ? {} : { "goes away in": span(found.ttl_ms / 1000) }),
    };
    const budget = (value) => (value === null ? "there is none" : typeof value === "string" ? `not a hash but a ${value}`
      : Object.entries(value).map((pair) => pair.join("=")).join(" "));
    const writes = sweep.writes.map((words) => element("li", "", visible(words.join(" "))));
    return [
      element("h2", "", visible(`${found.kind} ${found.id}`), element("small", "", ` ${visible(found.shard)}`), " ", element("span", "pill", visible(condition(found)))),
      commands(found.commands),
      section("A sweep now", element("p", "", element("b", "", sweep.outcome), visible(`: ${sweep.why}`)), element("ul", "writes", ...writes)),
      section("Place", values(place)),
      ...(Object.keys(fields).length ? [section("Hash", values(fields))] : []),
      ...(Object.keys(budgets).length
        ? [section("Budgets", table(["scope", "budget"], Object.entries(budgets).map(([scope, value]) => [scope, budget(value)])))] : []),
      ...(found.event === null ? [section("Event", none("None is in the stream."))] : event(found.event)),
    ];
  }

  const shown = {
    search: (found) => found.shards.flatMap((shard) => [
      ...(shard.entries.length
        ? [section("Entries with this id", table(["kind", "entry"], shard.entries.map((each) => [each.kind, link("entry", { shard: shard.shard, ...each }, each.id)])))] : []),
      ...shard.batches.map(batch),
      section(
        "Events", ...(shard.rows.length ? [events(shard.rows, shard.shard)] : []), looked(shard.shard, shard.looked, "event", shard.rows.length + shard.batches.length > 0),
        element("p", "none", "As a tenant: ", link("dead-letters", { tenant: asked.get("q") }, "dead letters"), " · ", link("quarantine", { tenant: asked.get("q") }, "quarantine")),
      ),
    ]),
    entry: (found) => {
      if (found.shards.length) document.title = `${visible(condition(found.shards[0]))} · ${visible(found.shards[0].id).slice(0, 60)} · sweeperd`;
      const parts = [...found.shards.flatMap(entry), ...found.events.flatMap(event), ...found.batches.map(batch)];
      if (parts.length) return parts;
      const searched = found.looked.map((each) => looked("", { ...each, before: "" }, "event"));
      return [none("No shard knows this id."), ...searched, link("search", { q: asked.get("id") }, "Search the events")];
    },
    expired: (found) => found.shards.flatMap((shard) => [
      events(shard.rows, shard.shard), looked(shard.shard, shard.looked, "event"), commands(shard.commands),
    ]),
    "dead-letters": (found) => found.shards.flatMap((shard) => [
      table(
        ["given up", "endpoint", "reason", "attempts", "entry", "tenant", "event"],
        shard.rows.map((row) => [
          moment(row.given_up_at), link(page, { endpoint: row.endpoint }, row.endpoint), row.reason, row.attempts,
          entryLink(row, shard.shard), tenantLink(row), link("entry", { shard: shard.shard, id: row.stream_id }, row.event_id),
        ]),
      ),
      looked(shard.shard, shard.looked, "dead letter"), commands(shard.commands),
    ]),
    quarantine: (found) => found.shards.flatMap((shard) => shard.kinds.flatMap((kind) => [
      section(
        `${kind.kind}: ${counted.format(kind.size)} in quarantine`,
        table(
          ["set aside", "entry", "reason", "tenant", "holds"],
          kind.rows.map((row) => [
            moment(row.quarantined_at), link("entry", { shard: shard.shard, kind: kind.kind, id: row.id }, row.id || "(empty id)"),
            row.reason ? further({ reason: row.reason, before: "" }, row.reason) : "", tenantLink(row), `${row.amount} ${row.unit}`.trim(),
          ]),
        ),
        ...(kind.before ? [element("p", "none", further({ shard: shard.shard, kind: kind.kind, before: kind.before }, "Older"))] : []),
        commands(kind.commands),
      ),
    ])),
  };

  function trouble(text) {
    say(byId("offline"), visible(text));
    byId("offline").hidden = false;
  }

  async function show() {
    const heading = [...asked].filter(([name, value]) => name !== "before" && value).map(([name, value]) => `${name}: ${value}`).join(", ");
    byId("found").append(element("h2", "asked", visible([NAMES[page], heading].filter(Boolean).join(" · "))));
    document.title = `${NAMES[page]} · sweeperd`;
    byId("q").value = asked.get("q") ?? asked.get("id") ?? "";
    if (page === "search" && !asked.get("q")) {
      byId("found").append(none("The id of an entry, the id of an event or a batch as a receiver knows it, or a tenant."));
      byId("q").focus();
      return;
    }
    try {
      const answer = await fetch(`${page}.json${location.search}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(await answer.text());
      const found = await answer.json();
      const several = page !== "entry" && found.shards.length + found.down.length > 1;
      for (const each of found.down) byId("found").append(element("p", "trouble", visible(`${each.shard}: ${each.error}`)));
      for (const each of page === "entry" ? [found] : found.shards.map((one) => ({ ...found, shards: [one] }))) {
        const title = several ? [element("h2", "", visible(each.shards[0].shard))] : [];
        const card = element("section", "shard card", ...title, ...shown[page](each));
        byId("found").append(card);
      }
    } catch (error) {
      trouble(error.message || "sweeperd does not answer.");
    }
    document.body.dataset.done = "true";
  }

  byId("search").addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    location.assign(`search?${new URLSearchParams({ q: byId("q").value.trim() })}`);
  });
  show();
