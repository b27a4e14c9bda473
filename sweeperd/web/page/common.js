// What the pages share. Texts from Redis are only ever put into a page as text, never as markup.

  const byId = (id) => document.getElementById(id);
  const counted = new Intl.NumberFormat("en");
  const digits = (count) => new Intl.NumberFormat("en", { minimumFractionDigits: count, maximumFractionDigits: count });
  const fine = [digits(2), digits(1), digits(0)];

  // A duration as `sweeperd status` writes it.
  function span(seconds) {
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    const whole = Math.floor(seconds);
    for (const [size, unit, part, smaller] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
      const rest = Math.floor((whole % size) / part);
      if (whole >= size) return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
    }
    return `${whole} s`;
  }

  const plural = (count, one, many) => `${counted.format(count)} ${count === 1 ? one : many}`;

  // Seconds from one moment to a later one.
  const between = (moment, now) => Math.max(0, Date.parse(now) - Date.parse(moment)) / 1000;

  function element(name, className, ...children) {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  const LONGEST = 20_000;

  // What cannot be seen, or would hide other text or turn the direction of writing, is escaped; a long text is cut.
  function visible(value) {
    const text = String(value);
    const short = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
    return short.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
  }

  // A link to a page about entries; parts without a value are left out.
  function link(name, parts, text) {
    const made = element("a", "", visible(text));
    made.href = `${name}?${new URLSearchParams(Object.entries(parts).filter(([, value]) => value))}`;
    return made;
  }

  // A node is changed only if its text differs, so that a selection and the scroll position stay.
  function say(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  function dress(node, className) {
    if (node.className !== className) node.className = className;
  }

  // The elements for a list of keys, in the order of the keys. An element stays as long as its key does.
  class Family {
    constructor(parent, make) {
      this.parent = parent;
      this.make = make;
      this.members = new Map();
    }

    show(entries, key) {
      const kept = new Map();
      entries.forEach((entry, number) => {
        const name = key(entry, number);
        const member = this.members.get(name) ?? this.make(entry);
        kept.set(name, member);
        if (this.parent.children[number] !== member.root) {
          this.parent.insertBefore(member.root, this.parent.children[number] ?? null);
        }
        member.show(entry);
      });
      for (const [name, member] of this.members) if (!kept.has(name)) member.root.remove();
      this.members = kept;
    }
  }

  class Command {
    constructor() {
      this.text = element("code");
      this.button = element("button", "", "Copy");
      this.button.type = "button";
      this.button.addEventListener("click", () => this.copy());
      this.root = element("div", "command", this.text, this.button);
    }

    show(command) {
      say(this.text, command);
    }

    // If the page is not served by https, a browser has no clipboard for it: then the command is selected.
    async copy() {
      const selection = getSelection();
      selection.selectAllChildren(this.text);
      try {
        await navigator.clipboard.writeText(this.text.textContent);
        say(this.button, "Copied");
      } catch {
        say(this.button, document.execCommand("copy") ? "Copied" : "Selected");
      }
      setTimeout(() => say(this.button, "Copy"), 2000);
    }
  }

