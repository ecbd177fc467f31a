"use strict";
// Asks /status.json every second and draws it. Texts from outside become text nodes and nothing else.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const POINTS = 120;       // two minutes of seconds
  const SECOND_MS = 1000;
  const PATIENCE_MS = 10000;

  // ---- elements

  const add = (made, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
    return made;
  };
  const el = (tag, attributes, ...children) => add(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => add(document.createElementNS(SVG, tag), attributes, children);

  // ---- figures as people read them

  const UNITS = ["", "k", "M", "G", "T", "P"];
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    let unit = 0;
    let left = Math.abs(value);
    while (left >= 999.5 && unit < UNITS.length - 1) { left /= 1000; unit += 1; }
    const digits = left >= 100 || (unit === 0 && Number.isInteger(left)) ? 0 : left >= 10 ? 1 : 2;
    return (value < 0 ? "-" : "") + left.toFixed(digits) + (unit ? " " + UNITS[unit] : "");
  };
  const bytes = (value) => {
    const text = short(value);
    return text === "–" ? text : text + (/[kMGTP]$/.test(text) ? "B" : " B");
  };
  const whole = (value) => Number(value).toLocaleString("en-US");
  const span = (ms) => {
    const seconds = Math.max(0, Math.round(ms / 1000));
    if (seconds < 120) return seconds + " s";
    if (seconds < 7200) return Math.floor(seconds / 60) + " min";
    if (seconds < 172800) return Math.floor(seconds / 3600) + " h";
    return Math.floor(seconds / 86400) + " days";
  };

  // ---- the page's parts

  const tile = (name, id) => {
    const figure = el("div", { class: "figure", id });
    const area = svg("path", {});
    const line = svg("polyline", {});
    const picture = svg("svg", { viewBox: "0 0 120 34", preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
    const values = [];
    return {
      node: el("div", { class: "card tile" }, el("div", { class: "name" }, name), figure, picture),
      show(value, text, unit) {
        figure.replaceChildren(text, " ", el("small", {}, unit));
        if (value !== null) values.push(value);
        if (values.length > POINTS) values.shift();
        const top = Math.max(...values, 1e-9) * 1.1;
        const points = values.map((v, at) => {
          const x = POINTS - values.length + at + 1;
          return x + "," + (33 - (32 * v) / top).toFixed(1);
        });
        line.setAttribute("points", points.join(" "));
        const first = POINTS - values.length + 1;
        area.setAttribute("d", points.length ? "M" + first + ",34 L" + points.join(" L") + " L" + POINTS + ",34 Z" : "");
      },
    };
  };
  const card = (title, body, ...beside) =>
    el("section", { class: "card" }, el("div", { class: "head" }, el("h2", {}, title), ...beside), body);
  const table = (id, columns, none) => {
    const rows = el("tbody", { id });
    const heads = columns.map(([name, kind]) => el("th", kind === "number" ? { class: "number" } : {}, name));
    return {
      node: el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), rows)),
      show(entries) {
        const made = entries.map((cells) =>
          el("tr", {}, ...cells.map((cell, at) => el("td", { class: columns[at][1] || "" }, cell))));
        if (!made.length) made.push(el("tr", {}, el("td", { class: "none", colspan: columns.length }, none)));
        rows.replaceChildren(...made);
      },
    };
  };
  const bar = (parts, total) => {
    const picture = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" });
    picture.append(svg("rect", { class: "ground", x: 0, y: 0, width: 100, height: 10 }));
    let at = 0;
    for (const [kind, value] of parts) {
      const width = total > 0 ? (100 * value) / total : 0;
      picture.append(svg("rect", { class: kind, x: at, y: 0, width, height: 10 }));
      at += width;
    }
    return picture;
  };
  const facts = (pairs) => el("dl", {}, ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

  const phase = el("span", { class: "pill", id: "phase" }, "…");
  const about = el("span", { class: "soft", id: "about" });
  const alarm = el("div", { class: "alarm", id: "alarm", role: "status" });
  const refusal = el("div", { class: "alarm", id: "refusal", role: "status" });
  const tiles = {
    records: tile("Records in", "records"),
    in: tile("Bytes in", "in"),
    out: tile("Bytes out", "out"),
    requests: tile("Requests", "requests"),
    syncs: tile("Syncs", "syncs"),
    lag: tile("Lag of all groups", "lag"),
  };
  const search = el("input", { id: "search", type: "search", placeholder: "find a topic or group", maxlength: 249,
    "aria-label": "find a topic or group", autocomplete: "off", spellcheck: "false" });
  const streamCount = el("span", { class: "soft", id: "stream-count" });
  const streams = table("streams", [["Stream", "name"], ["Records/s", "number"], ["In/s", "number"], ["Out/s", "number"],
    ["", ""], ["Size", "number"], ["Offsets", "number"]], "no streams");
  const groupCount = el("span", { class: "soft" });
  const groups = table("groups", [["Group", "name"], ["State", ""], ["Members", "number"], ["Partitions", "number"],
    ["Lag", "number"], ["Topics", "name"]], "no groups");
  const queries = table("queries", [["Query", "name"], ["Epoch", "number"], ["State", ""], ["Committed", "number"],
    ["Incarnation", "number"], ["Staged", "number"], ["State memory", "number"]], "no query has committed an epoch");
  const requests = table("requests-by-kind", [["Request", "name"], ["/s", "number"], ["Mean", "number"],
    ["Count", "number"]], "none yet");
  const events = table("events", [["When", ""], ["Event", ""], ["What", "name"], ["Times", "number"]],
    "no warnings, no errors");
  const hosts = table("hosts", [["Host", "name"], ["Number", "number"], ["Rack", "name"], ["Streams owned", "number"],
    ["Link", ""], ["Queued", "number"]], "no hosts");
  const lacking = table("lacking", [["Stream of this host", "name"], ["Chunks with missing copies", "number"]], "none");
  const owners = el("div", { id: "owners" });
  const cluster = card("Cluster", el("div", {}, hosts.node, lacking.node, owners));
  cluster.id = "cluster";
  cluster.hidden = true;
  const disk = el("div", { id: "disk" });
  const memory = el("div", { id: "memory" });
  const counts = el("div", { id: "counts" });

  document.getElementById("page").append(
    el("header", {}, el("h1", {}, "Cairn"), phase, about, alarm, refusal),
    el("div", { class: "tiles" }, ...Object.values(tiles).map((one) => one.node)),
    el("div", { class: "grid" },
      el("div", { class: "column" },
        card("Streams", el("div", {}, streams.node, streamCount), search),
        cluster,
        card("Consumer groups", el("div", {}, groups.node, groupCount)),
        card("Queries", queries.node),
        card("Last warnings and errors", events.node)),
      el("div", { class: "column" },
        card("Disk", disk), card("Process", memory), card("Totals", counts), card("Requests", requests.node))),
    el("footer", {}, el("a", { href: "metrics" }, "metrics"), " · ", el("a", { href: "status.json" }, "status.json"),
      " · ", el("a", { href: "health" }, "health"), " · ", el("a", { href: "ready" }, "ready")));

  // ---- drawing

  const drawStreams = (found) => {
    const most = Math.max(...found.shown.map((one) => one.in_bytes_s + one.out_bytes_s), 0);
    streams.show(found.shown.map((one) => [
      one.topic + "-" + one.partition, short(one.records_s), bytes(one.in_bytes_s), bytes(one.out_bytes_s),
      bar([["in", one.in_bytes_s], ["out", one.out_bytes_s]], most), bytes(one.bytes),
      whole(one.start) + " – " + whole(one.end)]));
    streamCount.textContent = found.found > found.shown.length
      ? "the busiest " + found.shown.length + " of " + whole(found.found) : "";
  };
  const drawCluster = (found) => {
    cluster.hidden = found === null;
    if (found === null) return;
    hosts.show(found.hosts.map((one) => [one.host, whole(one.node_id), one.rack || "–", whole(one.owned_streams),
      el("span", { class: one.link === false ? "error" : "" }, one.link === null ? "here" : one.link ? "up" : "down"),
      bytes(one.queued_bytes)]));
    lacking.show(found.short.map((one) => [one.topic + "-" + one.partition, whole(one.chunks)]));
    owners.replaceChildren(facts([["streams of this host", whole(found.owned_streams)],
      ["streams without an owner", whole(found.streams_without_owner)],
      ["waiting takeovers", whole(found.waiting_takeovers)],
      ["streams below, at min.insync.replicas", whole(found.under_min_streams) + ", " + whole(found.at_min_streams)],
      ["streams, chunks with missing copies", whole(found.short_streams) + ", " + whole(found.short_chunks)],
      ["chunks with copies too close together", whole(found.crowded_chunks)],
      ["open, sealed copies on this host", whole(found.copies_open) + ", " + whole(found.copies_sealed)],
      ["unconfirmed batches", whole(found.unacknowledged_batches)],
      ["takeovers", whole(found.takeovers)],
      ["metadata store", found.is_metadata_away ? "away" : "answers"]]));
  };
  const drawGroups = (found) => {
    groups.show(found.shown.map((one) => [one.group, one.state, whole(one.members), whole(one.partitions), whole(one.lag),
      one.topics.join(", ")]));
    groupCount.textContent = found.found > found.shown.length
      ? "the " + found.shown.length + " groups with the most lag of " + whole(found.found) : "";
  };
  const drawQueries = (status) => {
    const states = new Map(status.state.map((one) => [one.query, one.bytes]));
    const rows = status.queries.map((one) => [one.query, one.epoch === null ? "–" : whole(one.epoch), one.state,
      one.committed_ms === null ? "–" : span(status.now_ms - one.committed_ms) + " ago", whole(one.incarnation),
      bytes(one.staged_bytes), states.has(one.query) ? bytes(states.get(one.query)) : "–"]);
    for (const one of status.queries) states.delete(one.query);
    for (const [query, size] of states) rows.push([query, "–", "–", "–", "–", "–", bytes(size)]);
    queries.show(rows);
  };
  const drawMachine = (status) => {
    const { free_bytes: free, total_bytes: total, log_bytes: log, staged_bytes: staged, error } = status.disk;
    const others = Math.max(0, total - free - log - staged);
    disk.replaceChildren(
      el("div", { class: "meter" }, bar([["in", log], ["out", staged], ["rest", others]], total)),
      facts([["log", bytes(log)], ["staged output", bytes(staged)], ["other files", bytes(others)],
        ["free", bytes(free) + " of " + bytes(total)],
        ["reserved", bytes(status.disk.needed_bytes)],
        ["appends", status.disk.refused_since_ms === null ? "taken" : "refused"],
        ["last write", error === null ? "ok" : error]]));
    const held = status.memory;
    memory.replaceChildren(facts([["memory", bytes(held.resident_bytes)], ["newest batches", bytes(held.tail_bytes)],
      ["indexes", bytes(held.index_bytes)], ["requests under way", bytes(held.request_bytes)],
      ["processor", status.rates.cpu === null ? "–" : Math.round(100 * status.rates.cpu) + " %"],
      ["maximum event loop delay", status.loop_lag_ms + " ms"],
      ["open files, threads", whole(status.totals.open_files) + ", " + whole(status.totals.threads)]]));
    const all = status.totals;
    counts.replaceChildren(facts([["topics, partitions", whole(all.topics) + ", " + whole(all.partitions)],
      ["clients connected", whole(all.connections)], ["registered readers", whole(all.readers)],
      ["epochs committed", whole(all.epochs_committed)], ["records since the start", whole(all.records)]]));
  };
  const drawEvents = (seen, now) => events.show(seen.map((one) => [
    span(now - one.at_ms) + " ago", el("span", { class: one.level }, one.event),
    Object.entries(one.fields).map(([name, value]) => name + "=" + value).join(" "), whole(one.count)]));
  const draw = (status) => {
    const rates = status.rates;
    phase.textContent = status.phase;
    const { refused_since_ms: refused, needed_bytes: needed, free_bytes: free } = status.disk;
    const serves = status.phase === "ready" && status.disk.error === null && refused === null;
    phase.className = "pill " + (serves ? "good" : "bad");
    refusal.textContent = refused === null ? "" : "Appends are refused since " + new Date(refused).toISOString() + " ("
      + span(status.now_ms - refused) + "): " + bytes(free) + " are free on the disk, " + bytes(needed)
      + " must stay free. Delete topics or records, lower their retention, or free disk space.";
    about.textContent = "cluster " + status.cluster_id + " · up " + span(status.now_ms - status.started_ms) + " · "
      + status.data_dir + " · version " + status.version;
    tiles.records.show(rates.records, short(rates.records), "/s");
    tiles.in.show(rates.in_bytes, bytes(rates.in_bytes), "/s");
    tiles.out.show(rates.out_bytes, bytes(rates.out_bytes), "/s");
    tiles.requests.show(rates.requests, short(rates.requests), "/s");
    tiles.syncs.show(rates.syncs, short(rates.syncs),
      rates.sync_ms === null ? "/s" : "/s, " + rates.sync_ms.toFixed(2) + " ms each");
    tiles.lag.show(status.totals.lag, short(status.totals.lag), "records");
    drawStreams(status.streams);
    drawCluster(status.cluster);
    drawGroups(status.groups);
    drawQueries(status);
    drawMachine(status);
    requests.show(status.requests.map((one) => [one.request, short(one.per_s),
      one.mean_ms === null ? "–" : short(one.mean_ms) + " ms", whole(one.count)]));
    drawEvents(status.events, status.now_ms);
  };

  // ---- asking

  let answeredMs = Date.now();
  const askOnce = async () => {
    const patience = new AbortController();
    const timer = setTimeout(() => patience.abort(), PATIENCE_MS);
    try {
      const answer = await fetch("status.json?search=" + encodeURIComponent(search.value),
        { cache: "no-store", signal: patience.signal });
      if (!answer.ok) throw new Error("status " + answer.status);
      draw(await answer.json());
      answeredMs = Date.now();
      alarm.textContent = "";
    } catch (error) {
      alarm.textContent = "No answer for " + span(Date.now() - answeredMs) + ": the figures below are out of date.";
    } finally {
      clearTimeout(timer);
    }
  };
  const run = async () => {
    for (;;) {
      if (!document.hidden) await askOnce();
      await new Promise((go) => setTimeout(go, SECOND_MS));
    }
  };
  search.addEventListener("input", () => { askOnce(); });
  run();
})();
