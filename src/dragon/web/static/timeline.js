// Bars from the start to the end of each process, by node.

const BAR = 7;
const LEFT = 120;
const MOST_BARS = 2000;
const MOST_LANES = 30;
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawTimeline(svg, rows, from, to) {
  const width = svg.clientWidth || 900;
  const across = (time) => LEFT + ((time - from) / Math.max(to - from, 1e-3)) * (width - LEFT - 10);
  const wanted = (a, b) => (b.look === "failed") - (a.look === "failed") || b.started - a.started;
  const chosen = [...rows].sort(wanted).slice(0, MOST_BARS).sort((a, b) => a.started - b.started);
  const byHost = Map.groupBy(chosen, (row) => row.host);
  const parts = [];
  let y = 20;
  for (const [host, members] of [...byHost].sort()) {
    parts.push(element("line", { x1: 0, x2: width, y1: y - 2, y2: y - 2 }));
    parts.push(element("text", { x: 6, y: y + BAR + 2 }, host));
    const lanes = []; // when the last bar in each ends
    let left = 0;
    for (const row of members) {
      const end = row.ended ?? to;
      let lane = lanes.findIndex((until) => until <= row.started);
      if (lane < 0) lane = lanes.length;
      if (lane >= MOST_LANES) {
        left += 1;
        continue;
      }
      lanes[lane] = end;
      const place = { x: across(Math.max(row.started, from)), y: y + lane * (BAR + 1), height: BAR };
      const bar = element("rect", { ...place, width: Math.max(across(end) - place.x, 1.5), class: row.look });
      bar.append(element("title", {}, `${row.name} (puid ${row.puid}): ${row.state}, ${duration(row.lasted)}`));
      parts.push(bar);
    }
    if (left) parts.push(element("text", { x: 6, y: y + 2 * BAR + 8 }, `and ${left} more`));
    y += Math.max(lanes.length * (BAR + 1), 2 * BAR + (left ? 10 : 0)) + 6;
  }
  if (rows.length > chosen.length) {
    const text = `${rows.length - chosen.length} more started earlier and did not fail; they are not drawn`;
    parts.push(element("text", { x: 6, y: y + BAR }, text));
    y += 2 * BAR;
  }
  for (let i = 0; i <= 4; i++) {
    const time = from + ((to - from) * i) / 4;
    const anchor = i === 0 ? "start" : i === 4 ? "end" : "middle";
    parts.push(element("text", { x: across(time), y: 12, "text-anchor": anchor }, clock(time)));
  }
  svg.setAttribute("height", y);
  svg.replaceChildren(...parts);
}
