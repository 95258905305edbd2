// Draws the states of a lab as they come (server-sent events).  Names become text, never markup.

const config = JSON.parse(document.getElementById("config").textContent);
const at = Object.fromEntries(config.columns.map((name, place) => [name, place]));
const element = (id) => document.getElementById(id);
const SHOWN = 40; // links in the table
const SILENT_MS = 20000; // the server says something at least every 5 s
const lines = [...document.querySelectorAll("#drawing .edge")].flatMap((edge) => {
  const name = [...edge.classList].find((one) => one.startsWith("line-"));
  return name ? [{ edge, number: Number(name.slice(5)) }] : [];
});
let state = null;
let lastMs = Date.now();
let updates = 0;

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

function time(us) {
  const units = [[1e6, "s"], [1e3, "ms"], [1, "us"]];
  const [factor, unit] = units.find(([one]) => us >= one) ?? [1, "us"];
  return `${Number((us / factor).toPrecision(3))} ${unit}`;
}

function count(number) {
  if (number === null || number === undefined) return "-";
  if (number >= 1e9) return `${(number / 1e9).toFixed(2)}G`;
  return number >= 1e6 ? `${(number / 1e6).toFixed(2)}M` : String(number);
}

const percent = (share, digits = 1) => (share * 100).toFixed(digits);
const kilobytes = (octets) => (octets === null ? "-" : (octets / 1000).toFixed(1));
const level = (share) => (share >= 0.9 ? "full" : share >= 0.5 ? "busy" : share > 0 ? "" : "zero");
// Calm until packets are marked, full from where all are: as the terminal's view has it.
const depth = (octets, link) => {
  if (!octets) return "zero";
  if (octets >= (link[at.kmax_bytes] ?? link[at.limit_bytes] * 0.9)) return "full";
  return octets >= (link[at.kmin_bytes] ?? link[at.limit_bytes] * 0.5) ? "busy" : "";
};
const counted = (number) => (number ? "busy" : "zero");

// A cell: its text, and how it looks; bar: shares of its length, the thin one first.
const cell = (text, look = "", bar = null) => ({ text, look, bar });

function fill(table, headings, rows) {
  const head = document.createElement("thead");
  const row = head.insertRow();
  for (const [text, look] of headings) {
    const one = document.createElement("th");
    one.textContent = text;
    one.className = look;
    one.scope = "col";
    row.append(one);
  }
  const body = document.createElement("tbody");
  for (const cells of rows) {
    const line = body.insertRow();
    cells.forEach(({ text, look, bar }, place) => {
      const one = line.insertCell();
      one.className = `${headings[place][1]} ${look}`;
      if (bar === null) {
        one.textContent = text;
        one.title = headings[place][1] === "text" ? text : "";
        return;
      }
      const track = document.createElement("div");
      track.className = "track";
      for (const share of bar) {
        const part = document.createElement("i");
        part.style.width = `${Math.min(1, Math.max(0, share)) * 100}%`;
        track.append(part);
      }
      one.append(track);
    });
  }
  table.replaceChildren(head, body);
  for (const part of document.querySelectorAll(`[data-of="${table.id}"]`)) {
    part.hidden = rows.length === 0;
  }
}

function drawLines() {
  const by = element("colour").value;
  const values = state.lines[by];
  const whole = { utilisation: "of a link's rate", queue: "of a queue's limit" };
  element("scale").textContent = `0 to all ${whole[by] ?? `of the most ${by} in the interval`}`;
  for (const { edge, number } of lines) {
    const share = values[number] ?? 0;
    const step = share > 0 ? Math.min(config.steps, Math.ceil(share * config.steps)) : 0;
    for (const name of [...edge.classList]) if (name.startsWith("step-")) edge.classList.remove(name);
    edge.classList.add(`step-${step}`);
  }
}

function drawTiers() {
  const headings = [["tier", "text"], ["links", "wide"], ["mean %", ""], ["max %", ""],
    ["mean, max", "bar wide"], ["max/mean", "wide"], ["deepest KB", ""], ["marks", ""],
    ["trims", ""], ["drops", ""]];
  fill(element("tiers"), headings, state.tiers.map((tier) => [
    cell(tier.tier), cell(tier.links), cell(percent(tier.mean), level(tier.mean)),
    cell(percent(tier.max), level(tier.max)), cell("", "", [tier.max, tier.mean]),
    cell(tier.max_mean === null ? "-" : tier.max_mean.toFixed(2), tier.max_mean >= 1.5 ? "busy" : ""),
    cell(kilobytes(tier.deepest_bytes), tier.deepest_bytes ? "" : "zero"),
    cell(count(tier.marked), counted(tier.marked)), cell(count(tier.trimmed), counted(tier.trimmed)),
    cell(count(tier.dropped), tier.dropped ? "full" : "zero"),
  ]));
  const tiers = state.tiers.map((tier) => tier.tier)
    .filter((tier) => state.rails.some((rail) => tier in rail.tiers));
  fill(element("rails"), [["mean / max %", "text"], ...tiers.map((tier) => [tier, ""])],
    state.rails.map((rail) => [cell(`rail ${rail.rail}`), ...tiers.map((tier) => {
      const pair = rail.tiers[tier];
      return pair ? cell(`${percent(pair[0], 0)} / ${percent(pair[1], 0)}`, level(pair[1])) : cell("-");
    })]));
}

function drawLinks() {
  const by = element("sort").value;
  const key = (link) => (by === "queue"
    ? Math.max(link[at.queue_bytes], link[at.peak_bytes] ?? 0) : link[at[by]] ?? 0);
  const sorted = [...state.links]
    .sort((a, b) => key(b) - key(a) || b[at.utilisation] - a[at.utilisation]);
  const shown = sorted.slice(0, SHOWN);
  const all = state.links.length + state.links_left_out;
  element("shown").textContent = `${shown.length} of ${all} link directions`;
  const headings = [["link", "text"], ["to", "text wide"], ["Gb/s", ""], ["%", ""],
    ["utilisation", "bar wide"], ["queue KB", ""], ["of limit", "bar wide"], ["peak KB", ""],
    ["marks", ""], ["total", "wide"], ["trims", ""], ["total", "wide"], ["drops", ""],
    ["total", "wide"]];
  fill(element("links"), headings, shown.map((link) => {
    const limit = link[at.limit_bytes];
    const deepest = Math.max(link[at.queue_bytes], link[at.peak_bytes] ?? 0);
    return [
      cell(link[at.port]), cell(link[at.to]),
      cell(link[at.gbps].toFixed(1), link[at.gbps] ? "" : "zero"),
      cell(percent(link[at.utilisation]), level(link[at.utilisation])),
      cell("", "", [link[at.utilisation], link[at.utilisation]]),
      cell(kilobytes(link[at.queue_bytes]), depth(link[at.queue_bytes], link)),
      cell("", "", [deepest / limit, link[at.queue_bytes] / limit]),
      cell(kilobytes(link[at.peak_bytes]), depth(deepest, link)),
      cell(count(link[at.marked]), counted(link[at.marked])), cell(count(link[at.total_marked])),
      cell(count(link[at.trimmed]), counted(link[at.trimmed])), cell(count(link[at.total_trimmed])),
      cell(count(link[at.dropped]), link[at.dropped] ? "full" : "zero"),
      cell(count(link[at.total_dropped])),
    ];
  }));
}

function drawRun() {
  const { run } = state;
  element("run").hidden = run === null;
  if (run === null) return;
  const end = run.errors === null ? "" : run.errors ? `, ended with ${run.errors} errors` : ", ended";
  element("progress").textContent = `${run.scenario}: finished rows ${run.finished}${end}`;
  fill(element("rows"), [["pattern", "text"], ["transport", "text"], ["size B", ""], ["time", ""],
    ["ideal", "wide"], ["busbw GB/s", ""], ["wrong", ""]], run.rows.map((row) => [
    cell(row.collective), cell(row.transport), cell(row.size_bytes), cell(time(row.time_us ?? 0)),
    cell(row.ideal_us === null ? "-" : time(row.ideal_us)),
    cell(row.busbw_gbps === null ? "-" : row.busbw_gbps.toFixed(2)),
    cell(row.wrong === null ? "-" : row.wrong, row.wrong ? "full" : ""),
  ]));
  fill(element("flows"), [["from", "text"], ["to", "text"], ["octets", ""], ["messages", "wide"],
    ["time", ""], ["goodput GB/s", ""]], run.flows.map((flow) => [
    cell(flow.from), cell(flow.to), cell(count(flow.bytes)), cell(count(flow.messages)),
    cell(time(flow.time_us)), cell(flow.goodput_gbps.toFixed(2)),
  ]));
}

function report(kind, text) {
  const status = element("status");
  if (status.textContent === text) return;
  status.className = kind;
  status.textContent = text;
}

function draw() {
  const dilation = state.dilation === null ? "" : `, dilation ${state.dilation}`;
  element("facts").textContent =
    `${state.topology} · switch ${state.switch} · ${state.clock} clock${dilation}`;
  drawRun();
  if (!state.links) return;
  drawLines();
  drawTiers();
  drawLinks();
}

function drawStatus() {
  const seen = clock(state.at_s * 1000);
  if (state.ended) {
    report("ended", `ended at ${clock(state.ended_s * 1000)}: ${state.ended}; ` +
      `these are its last values, of ${seen}`);
  } else if (!state.links) report("waiting", "waiting for the first interval");
  else report("live", `live, ${seen} · up ${time(state.up_us)} of fabric time · ` +
    `interval ${time(state.interval_us)}`);
}

function lost() {
  if (state?.ended) return;
  const since = state ? `; these values are of ${clock(state.at_s * 1000)}` : "";
  report("lost", `the server does not answer since ${clock(lastMs)}${since}`);
}

const events = new EventSource("/events");
events.onmessage = (event) => {
  lastMs = Date.now();
  state = JSON.parse(event.data);
  draw();
  drawStatus();
  updates += 1;
  document.body.dataset.updates = String(updates);
  if (state.ended) events.close();
};
events.onerror = lost;
setInterval(() => { if (Date.now() - lastMs > SILENT_MS) lost(); }, 1000);
element("colour").onchange = () => { if (state?.links) drawLines(); };
element("sort").onchange = () => { if (state?.links) drawLinks(); };
