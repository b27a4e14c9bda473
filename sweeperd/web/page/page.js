// Reads status.json every few seconds and shows it.

  const EVERY_MS = 3000;
  const PATIENCE_MS = 8000;
  const WIDTH = 300;
  const HEIGHT = 60;
  const SHORTEST_SPAN = 300;

  // ---- text

  // A rate as `sweeperd status` writes it.
  const perSecond = (rate) => fine[rate >= 100 ? 2 : rate >= 10 ? 1 : 0].format(rate);

  // The time until what waits now is done.
  function emptyIn(waiting, seconds) {
    if (!waiting || (seconds !== null && seconds < 1)) return "";
    return seconds === null ? "not empty at this rate" : `empty in ${span(seconds)}`;
  }

  // What the charts of a kind leave out.
  function kindLine(kind) {
    const parts = [[kind.alive, "alive"], [kind.held, "held"], [kind.deferred, "wait for memory"], [kind.protected, "protected"]];
    return parts.filter(([count], number) => count || number === 0).map(([count, text]) => `${counted.format(count)} ${text}`).join(", ");
  }

  // How full Redis is, and the level.
  function memoryLine(memory) {
    if (memory === null) return ["", ""];
    const mib = (bytes) => `${counted.format(Math.round(bytes / 2 ** 20))} MiB`;
    if (memory.limit_bytes === null) return [`memory: ${mib(memory.used_bytes)}`, ""];
    const percent = Math.floor((100 * memory.used_bytes) / memory.limit_bytes);
    return [`memory: ${percent} % of ${mib(memory.limit_bytes)}`, percent >= 100 ? "bad" : percent >= 85 ? "watch" : ""];
  }

  // ---- elements

  function drawn(name, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  // ---- what may be done about something: commands to copy, and the section of the runbook

  let runbookBase = "";

  class Advice {
    constructor() {
      this.commands = new Family(element("div", "commands"), () => new Command());
      this.runbook = element("span", "runbook");
      this.root = element("div", "advice", this.commands.parent, this.runbook);
    }

    show({ commands, runbook }) {
      this.commands.show(commands, (_command, number) => number);
      this.runbook.hidden = runbook === "";
      const known = /^https?:\/\//.test(runbookBase);
      const name = `runbook.md#${runbook}`;
      if (this.named === `${runbookBase} ${name}`) return;
      this.named = `${runbookBase} ${name}`;
      const link = element(known ? "a" : "span", "", known ? name : `docs/${name}`);
      if (known) {
        link.href = `${runbookBase}#${runbook}`;
        link.target = "_blank";
        link.rel = "noopener noreferrer";
      }
      this.runbook.replaceChildren("What it means: ", link);
    }
  }

  // A line that an operator should know of.
  class Warning {
    constructor() {
      this.text = element("p");
      this.advice = new Advice();
      this.root = element("div", "warning", this.text, this.advice.root);
    }

    show(warning) {
      say(this.text, warning.text);
      this.advice.show(warning);
    }
  }

  // The quarantined entries with one reason.
  class Reason {
    constructor() {
      this.name = element("b");
      this.count = element("span", "count");
      this.meaning = element("p");
      this.newest = element("p", "ids");
      this.advice = new Advice();
      this.root = element(
        "details", "reason", element("summary", "", this.name, this.count), this.meaning, this.newest, this.advice.root,
      );
    }

    show({ reason, shard }) {
      const kind = reason.kind === "reservations" ? "" : `${reason.kind}: `;
      say(this.name, kind + (reason.reason || "no reason in the hash"));
      say(this.count, counted.format(reason.count));
      say(this.meaning, reason.text);
      this.meaning.hidden = reason.text === "";
      const text = reason.newest.join(", ");
      if (this.newest.textContent !== `Newest: ${text}`) {
        const links = reason.newest.map((id) => (id.endsWith("…") ? id : link("entry", { shard, kind: reason.kind, id }, id)));
        this.newest.replaceChildren("Newest: ", ...links.flatMap((each, number) => (number ? [", ", each] : [each])));
      }
      this.advice.show(reason);
    }
  }

  // ---- a chart

  // How far back the charts show, seconds.
  const reached = (ago) => Math.min(3600, Math.max(SHORTEST_SPAN, ago[0] ?? 0));

  // The same in words, to the minute.
  const reach = (seconds) => span(60 * Math.round(seconds / 60));

  class Chart {
    // `least`: the smallest value that fills the height, so that a single event is not a mountain.
    constructor(label, format, least) {
      this.label = label;
      this.format = format;
      this.least = least;
      this.gaps = drawn("g", {});
      this.area = drawn("path", { class: "area" });
      this.line = drawn("path", { class: "line" });
      this.cursor = drawn("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
      this.svg = drawn("svg", {
        class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      });
      const grid = drawn("line", { class: "grid", x1: 0, x2: WIDTH, y1: 0, y2: 0 });
      this.svg.append(this.gaps, grid, this.area, this.line, this.cursor);
      this.since = element("span");
      this.reading = element("span");
      const caption = element("figcaption", "", this.since, this.reading, element("span", "", "now"));
      this.root = element("figure", "", this.svg, caption);
      this.svg.addEventListener("pointermove", (event) => this.point(event));
      this.svg.addEventListener("pointerleave", () => this.point(null));
    }

    show(ago, values, down) {
      this.ago = ago;
      this.values = values;
      this.reach = reached(ago);
      this.most = Math.max(0, ...values.filter((value) => value !== null));
      const full = Math.max(this.least, this.most);
      const segments = [];
      values.forEach((value, number) => {
        if (value === null) return;
        const point = [this.x(number), HEIGHT - (value / full) * (HEIGHT - 2)];
        if (number && values[number - 1] !== null) segments.at(-1).push(point);
        else segments.push([point]);
      });
      const path = (points) => points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
      const alone = (points) => (points.length === 1 ? [points[0], [points[0][0] + 0.5, points[0][1]]] : points);
      const lines = segments.map(alone);
      this.line.setAttribute("d", lines.map((points) => `M${path(points)}`).join(""));
      const floor = (points) => `M${points[0][0].toFixed(1)} ${HEIGHT}L${path(points)}L${points.at(-1)[0].toFixed(1)} ${HEIGHT}Z`;
      this.area.setAttribute("d", lines.map(floor).join(""));
      this.showGaps(down);
      say(this.since, `${reach(this.reach)} ago`);
      if (!this.pointed) say(this.reading, `up to ${this.format(this.most)}`);
      const last = values.findLast((value) => value !== null) ?? 0;
      this.svg.setAttribute("aria-label", `${this.label}: ${this.format(last)} now, up to ${this.format(this.most)} in ${reach(this.reach)}`);
    }

    showGaps(down) {
      const spans = [];
      down.forEach((gone, number) => {
        if (!gone) return;
        const from = this.x(number);
        const to = number + 1 < down.length ? this.x(number + 1) : WIDTH;
        spans.push(drawn("rect", { class: "gap", x: from, y: 0, width: Math.max(0, to - from), height: HEIGHT }));
      });
      this.gaps.replaceChildren(...spans);
    }

    x(number) {
      return Math.max(0, WIDTH * (1 - this.ago[number] / this.reach));
    }

    point(event) {
      this.pointed = event !== null && this.ago?.length > 0;
      this.cursor.setAttribute("visibility", this.pointed ? "visible" : "hidden");
      if (!this.pointed) {
        if (this.ago) say(this.reading, `up to ${this.format(this.most)}`);
        return;
      }
      const box = this.svg.getBoundingClientRect();
      const wanted = this.reach * (1 - (event.clientX - box.left) / box.width);
      let nearest = 0;
      this.ago.forEach((ago, number) => {
        if (Math.abs(ago - wanted) < Math.abs(this.ago[nearest] - wanted)) nearest = number;
      });
      const x = this.x(nearest);
      this.cursor.setAttribute("x1", x);
      this.cursor.setAttribute("x2", x);
      const value = this.values[nearest];
      say(this.reading, `${value === null ? "not known" : this.format(value)}, ${span(this.ago[nearest])} ago`);
    }
  }

  class Panel {
    constructor(title, format, least) {
      this.chart = new Chart(title, format, least);
      this.number = element("b");
      this.note = element("span");
      this.root = element("div", "chart", element("h3", "", title), element("div", "value", this.number, this.note), this.chart.root);
    }

    show(number, note, level, ago, values, down) {
      say(this.number, number);
      say(this.note, note);
      dress(this.root, `chart ${level}`);
      this.chart.show(ago, values, down);
    }
  }

  // ---- the answers

  class Answer {
    constructor() {
      this.question = element("h2");
      this.answer = element("strong");
      this.details = element("ul");
      this.root = element("article", "answer", this.question, this.answer, this.details);
    }

    show({ question, answer, level, details }) {
      dress(this.root, `answer ${level}`);
      say(this.question, question);
      say(this.answer, answer);
      details.forEach((detail, number) => {
        if (!this.details.children[number]) this.details.append(element("li"));
        say(this.details.children[number], detail.replace(/\d+ [dhm] \d+ [hms]\b|\d [dhms]\b/g, (duration) => duration.replaceAll(" ", "\u00a0")));
      });
      while (this.details.children.length > details.length) this.details.lastChild.remove();
    }
  }

  // ---- a shard and its endpoints

  function explained(endpoint, now) {
    const parts = [];
    // The moment is 0 if the record of a pause cannot be read.
    if (Date.parse(endpoint.paused_at)) parts.push(`for ${span(between(endpoint.paused_at, now))}`);
    if (endpoint.state === "muted") parts.push(`for ${span(endpoint.muted_seconds)} more`);
    if (endpoint.processes > 1 && endpoint.open_on) parts.push(`on ${endpoint.open_on} of ${endpoint.processes}`);
    if (endpoint.state === "open") parts.push(`${plural(endpoint.failures, "failure", "failures")} in a row`);
    const reason = endpoint.paused_reason || endpoint.failure;
    if (reason) parts.push(reason);
    if (endpoint.warning) parts.push(endpoint.warning);
    return parts.join(" · ");
  }

  // A moment as 2026-11-21 10:00 UTC.
  const minute = (moment) => `${moment.slice(0, 10)} ${moment.slice(11, 16)} UTC`;

  function replayed(replay) {
    const only = [replay.tenant, replay.event_type].filter(Boolean).join(", ");
    return [
      `Replay of ${minute(replay.since)} to ${minute(replay.until)}`, only && `only ${only}`,
      `≈ ${counted.format(replay.events - replay.left)} of ${counted.format(replay.events)} done`,
      `begun ${span(replay.running_seconds)} ago`,
    ].filter(Boolean).join(" · ");
  }

  class Endpoint {
    constructor() {
      this.name = element("b");
      this.place = element("small");
      this.state = element("span", "pill");
      this.behind = element("span", "pill watch", "falling behind");
      this.why = element("small");
      this.replay = element("small");
      this.toggle = element("button", "toggle", this.name);
      this.toggle.type = "button";
      this.toggle.setAttribute("aria-expanded", "false");
      this.toggle.addEventListener("click", () => this.open(this.toggle.getAttribute("aria-expanded") === "false"));
      this.waiting = this.cell("Waiting");
      this.oldest = this.cell("Oldest");
      this.rate = this.cell("A second");
      this.letters = this.cell("Dead letters");
      this.chart = new Chart("Waiting events", (value) => counted.format(value), 10);
      this.spark = element("td", "spark", this.chart.root);
      this.root = element(
        "tr", "", element("td", "", this.toggle, this.place), element("td", "", this.state, " ", this.behind, this.why, this.replay),
        this.waiting, this.oldest, this.rate, this.letters, this.spark,
      );
    }

    // The row below this one has the details.
    open(wanted) {
      this.toggle.setAttribute("aria-expanded", String(wanted));
      this.root.nextElementSibling.hidden = !wanted;
    }

    cell(label) {
      const made = element("td", "number");
      made.dataset.label = label;
      return made;
    }

    show({ endpoint, now, ago, down }) {
      const level = endpoint.level ?? "";
      const late = endpoint.oldest_pending_seconds > 900 ? "bad" : endpoint.oldest_pending_seconds > 60 ? "watch" : "";
      say(this.name, endpoint.endpoint);
      say(this.place, endpoint.place);
      say(this.state, endpoint.label);
      dress(this.state, `pill ${level}`);
      this.behind.hidden = !endpoint.falling_behind;
      say(this.why, explained(endpoint, now));
      say(this.replay, endpoint.replay ? replayed(endpoint.replay) : "");
      const known = endpoint.state !== "unknown";
      const waiting = () => (endpoint.pending_exact ? "" : "≈ ") + counted.format(endpoint.pending);
      say(this.waiting, !known ? "–" : endpoint.pending === null ? "no group" : waiting());
      const rate = known && endpoint.rate !== null ? perSecond(endpoint.rate) : "–";
      const empty = known && endpoint.pending !== null ? emptyIn(endpoint.pending, endpoint.empty_in_seconds) : "";
      this.rate.replaceChildren(rate, element("small", "", empty));
      say(this.oldest, known && endpoint.pending ? span(endpoint.oldest_pending_seconds) : "–");
      dress(this.oldest, late ? `number hot ${late}` : "number");
      const letters = counted.format(endpoint.dead_letters) + (endpoint.dead_letters_counted ? "" : "+");
      if (this.letters.textContent !== letters) {
        this.letters.replaceChildren(endpoint.dead_letters ? link("dead-letters", { endpoint: endpoint.endpoint }, letters) : letters);
      }
      dress(this.letters, endpoint.dead_letters ? "number hot watch" : "number");
      dress(this.spark, `spark ${level === "good" ? "" : level}`);
      this.chart.root.hidden = !known;
      if (known) this.chart.show(ago, endpoint.history, down);
    }
  }

  // The row below that of an endpoint: each process, the last attempts, and what may be done.
  class EndpointDetails {
    constructor() {
      this.replicas = new Family(element("ul"), () => new Line());
      this.attempts = new Family(element("ul"), () => new Line());
      this.noReplicas = element("p", "none", "No process delivers to it.");
      this.noAttempts = element("p", "none", "None is recorded.");
      this.advice = new Advice();
      const cell = element(
        "td", "details",
        element("section", "", element("h3", "", "Processes"), this.noReplicas, this.replicas.parent),
        element("section", "", element("h3", "", "Last attempts"), this.noAttempts, this.attempts.parent),
        element("section", "", element("h3", "", "What to do"), this.advice.root),
      );
      cell.colSpan = 7;
      this.root = element("tr", "drill", cell);
      this.root.hidden = true;
    }

    show({ endpoint }) {
      this.noReplicas.hidden = endpoint.replicas.length > 0;
      this.noAttempts.hidden = endpoint.attempts.length > 0;
      this.replicas.show(endpoint.replicas.map(replicaLine), (_line, number) => number);
      this.attempts.show(endpoint.attempts.map(attemptLine), (_line, number) => number);
      this.advice.show(endpoint);
    }
  }

  class Line {
    constructor() {
      this.root = element("li");
    }

    show({ level, text }) {
      dress(this.root, level);
      say(this.root, text);
    }
  }

  function replicaLine(replica) {
    const rate = replica.rate === null ? "" : `${perSecond(replica.rate)} a second`;
    const failing = `circuit open: ${plural(replica.failures, "failure", "failures")} in a row, ${replica.failure}`;
    const parts = [replica.process || "a process", replica.circuit_open ? failing : "circuit closed", rate];
    return { level: replica.circuit_open ? "bad" : "", text: parts.filter(Boolean).join(" · ") };
  }

  function attemptLine(attempt) {
    const which = attempt.events > 1 ? `${plural(attempt.events, "event", "events")} from ${attempt.event} on` : attempt.event;
    const text = [
      `${span(attempt.seconds_ago)} ago`, attempt.reason || attempt.result, `${counted.format(attempt.milliseconds)} ms`,
      which, `attempt ${attempt.attempt} of hand-over ${attempt.hand_over}`, attempt.replica,
    ].join(" · ");
    return { level: attempt.result === "delivered" ? "" : "bad", text };
  }

  const PROCESS = ["Process", "Role", "Running for", "Last heartbeat", "Events in hand"];

  // A daemon, as of its last heartbeat.
  class Process {
    constructor() {
      this.cells = PROCESS.map((label, number) => {
        const made = element("td", number > 1 ? "number" : "");
        made.dataset.label = label;
        return made;
      });
      this.name = element("b");
      this.version = element("small");
      this.role = element("span");
      this.kinds = element("small");
      this.cells[0].append(this.name, this.version);
      this.cells[1].append(this.role, this.kinds);
      this.root = element("tr", "", ...this.cells);
    }

    show({ process, age }) {
      const [, , running, heartbeat, hand] = this.cells;
      const { since, heartbeat_at: at, silent } = process;
      say(this.name, process.process);
      say(this.version, process.version);
      say(this.role, process.role);
      say(this.kinds, process.kinds.length ? `sweeps ${process.kinds.join(", ")}` : "");
      say(running, since === null ? "–" : span(between(since, at)));
      say(heartbeat, `${span(process.heartbeat_age_seconds + age)} ago${silent ? ", silent" : ""}`);
      say(hand, counted.format(process.in_hand));
      dress(heartbeat, silent ? "number hot bad" : "number");
      dress(this.root, silent ? "bad silent" : "");
    }
  }

  // A kind: its charts, and when it was swept.
  class Kind {
    constructor() {
      this.name = element("b");
      this.about = element("span");
      this.swept = element("span");
      this.overdue = new Panel("Overdue", (value) => counted.format(value), 10);
      this.expired = new Panel("Expired a second", perSecond, 0.1);
      this.quarantine = new Panel("In quarantine", (value) => counted.format(value), 3);
      const charts = element("div", "charts", this.overdue.root, this.expired.root, this.quarantine.root);
      this.root = element("section", "kind", element("header", "", this.name, this.about, this.swept), charts);
    }

    show({ kind, shard, ago, down }) {
      const { history } = kind;
      say(this.name, kind.kind);
      say(this.about, kindLine(kind));
      say(this.swept, lastSweep(kind, shard));
      const about = kind.exact ? "" : "≈ ";
      const grace = kind.in_grace ? `${about}${counted.format(kind.in_grace)} in grace` : "";
      const late = kind.oldest_overdue_seconds;
      const oldest = kind.overdue ? `the oldest for ${span(late)}` : "";
      this.overdue.show(
        about + counted.format(kind.overdue), [oldest, emptyIn(kind.overdue, kind.empty_in_seconds), grace].filter(Boolean).join(" · "),
        late > 60 ? "bad" : late > 20 ? "watch" : "", ago, history.overdue, down,
      );
      this.expired.show(
        kind.rate === null ? "–" : perSecond(kind.rate), `over ${span(kind.rate_window_seconds)} · ${counted.format(kind.expired)} in all`, "",
        ago, history.expired_per_second, down,
      );
      this.quarantine.show(counted.format(kind.quarantined), "", kind.quarantined ? "watch" : "", ago, history.quarantined, down);
    }
  }

  function lastSweep({ tick, tick_age_seconds: since, sweeping }, { age_seconds: age, stale }) {
    if (tick === null) return sweeping ? `${sweeping} sweeps for the first time` : "not swept yet";
    const now = sweeping === tick.by ? ", sweeping now" : sweeping ? `, ${sweeping} sweeps now` : "";
    const last = `swept ${span(since + age)} ago by ${tick.by}`;
    return stale ? `${last}, as far as is known` : last + now;
  }

  class Shard {
    constructor() {
      this.name = element("span");
      this.address = element("small");
      this.letters = element("span");
      this.memory = element("span");
      this.swept = element("p", "swept", this.letters, this.memory);
      this.trouble = element("p", "trouble");
      const heads = ["Endpoint", "State", "Waiting", "Oldest", "A second", "Dead letters", ""].map((text, number) =>
        element("th", number > 1 && number < 6 ? "number" : "", text));
      this.reach = heads[6];
      const rows = element("tbody");
      this.endpoints = new Family(rows, ({ details }) => (details ? new EndpointDetails() : new Endpoint()));
      this.table = element("table", "", element("thead", "", element("tr", "", ...heads)), rows);
      this.more = element("p", "none");
      this.kinds = new Family(element("div", "kinds"), () => new Kind());
      this.warnings = new Family(element("div", "warnings"), () => new Warning());
      this.reasons = new Family(element("div", "reasons"), () => new Reason());
      this.below = element("div", "endpoints", this.table, this.more);
      const columns = PROCESS.map((text, number) =>
        element("th", number > 1 ? "number" : "", text));
      const running = element("tbody");
      this.processes = new Family(running, () => new Process());
      this.running = element("div", "endpoints processes", element("table", "", element("thead", "", element("tr", "", ...columns)), running));
      this.root = element(
        "section", "shard", element("header", "", element("h2", "", this.name, this.address), this.swept),
        this.trouble, this.warnings.parent, this.kinds.parent, this.reasons.parent, this.below, this.running,
      );
    }

    show(shard) {
      const { status, history } = shard;
      say(this.name, shard.shard);
      say(this.address, shard.address);
      dress(this.root, shard.stale ? "shard stale" : "shard");
      this.showTrouble(shard);
      const parts = [this.swept, this.warnings.parent, this.kinds.parent, this.reasons.parent, this.below, this.running];
      for (const part of parts) part.hidden = status === null;
      if (status === null) return;
      const [memory, level] = memoryLine(status.memory);
      const letters = status.dead_letters ? plural(status.dead_letters, "dead letter", "dead letters") : "";
      say(this.letters, letters && memory ? `${letters} · ` : letters);
      say(this.memory, memory);
      dress(this.memory, level);
      const ago = history.seconds_ago;
      const down = history.unread;
      const { now } = status;
      this.kinds.show(status.kinds.map((kind) => ({ kind, shard, ago, down })), ({ kind }) => kind.kind);
      // The charts show what is known, which is less than an hour after a start.
      say(this.reach, `Waiting, last ${reach(reached(ago))}`);
      this.table.hidden = status.endpoints.length === 0;
      this.endpoints.show(
        status.endpoints.flatMap((endpoint, number) =>
          [false, true].map((details) => ({ endpoint, now, ago, down, details, number }))),
        ({ endpoint, details, number }) => `${number} ${details} ${endpoint.endpoint}`,
      );
      const processes = status.processes ?? [];
      this.processes.show(
        processes.map((process) => ({ process, age: shard.age_seconds })), ({ process }, number) => `${number} ${process.process}`,
      );
      this.running.hidden = processes.length === 0;
      this.warnings.show(status.warnings, (_warning, number) => number);
      this.warnings.parent.hidden = status.warnings.length === 0;
      const reasons = status.reasons.map((reason) => ({ reason, shard: shard.shard }));
      this.reasons.show(reasons, ({ reason }) => `${reason.kind} ${reason.reason}`);
      this.reasons.parent.hidden = status.reasons.length === 0;
      const unknown = status.more_endpoints ? `dead letters of ${plural(status.more_endpoints, "endpoint", "endpoints")} more` : "";
      const rest = [status.grouped, unknown].filter(Boolean).join(" · ");
      say(this.more, status.endpoints.length ? rest && `and ${rest}` : "There are no endpoints: events stay in the stream.");
      this.more.hidden = this.more.textContent === "";
    }

    showTrouble(shard) {
      const age = shard.status === null ? "" : ` The figures are ${span(shard.age_seconds)} old.`;
      let text = "";
      if (shard.error) text = `Redis cannot be read: ${shard.error.replace(/\.$/, "")}.${age}`;
      else if (shard.stale) text = `Redis does not answer.${age}`;
      else if (shard.status === null) text = "Not read yet.";
      say(this.trouble, text);
      this.trouble.hidden = text === "";
    }
  }

  // ---- the whole

  const answers = new Family(byId("answers"), () => new Answer());
  const shards = new Family(byId("shards"), () => new Shard());
  const TITLES = { good: "All well", watch: "Attention", bad: "Trouble" };
  let shownAt = null;
  let failing = false;

  function worst(levels) {
    return ["bad", "watch"].find((level) => levels.includes(level)) ?? "good";
  }

  function show(report) {
    runbookBase = report.runbook;
    answers.show(report.answers, (_answer, number) => number);
    shards.show(report.shards, (shard) => shard.shard);
    const level = worst(report.answers.map((answer) => answer.level));
    document.title = `${TITLES[level]} · sweeperd`;
    const tone = getComputedStyle(document.documentElement).getPropertyValue(`--${level}`).trim();
    const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><circle cx="4" cy="4" r="4" fill="${tone}"/></svg>`;
    byId("icon").setAttribute("href", `data:image/svg+xml,${encodeURIComponent(icon)}`);
    say(byId("about"), `sweeperd ${report.version}, as ${report.by} sees it`);
  }

  function showAge() {
    const age = shownAt === null ? null : (performance.now() - shownAt) / 1000;
    document.body.classList.toggle("offline", failing);
    byId("offline").hidden = !failing;
    if (failing) {
      say(byId("offline"), `sweeperd does not answer.${age === null ? "" : ` The figures are ${span(age)} old.`}`);
      say(byId("live"), "no connection");
    } else if (age !== null) {
      say(byId("live"), age < 5 ? "live" : `${span(age)} old`);
    }
  }

  async function poll() {
    if (busy) return;
    busy = true;
    clearTimeout(timer);
    try {
      const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
      if (!answer.ok) throw new Error(answer.statusText);
      show(await answer.json());
      shownAt = performance.now();
      failing = false;
    } catch {
      failing = true;
    }
    showAge();
    busy = false;
    if (!document.hidden) timer = setTimeout(poll, EVERY_MS);
  }

  let timer = 0;
  let busy = false;
  // A hidden page reads nothing until it is visible again.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) poll();
  });
  setInterval(showAge, 1000);
  poll();
