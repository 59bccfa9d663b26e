// The precision of each layer over steps, drawn as one picture.
'use strict';
(() => {
  const {count, element, hideTip, showTip, svg, tipTable} = gnomon;

  // Rows {name, indent, sites: [index]} : each layer, and below it the sites that ever differed from their layer.
  function precisionRows(data) {
    const groups = new Map();
    data.sites.forEach((site, index) => {
      const layer = /^model\.layers\.(\d+)\./.exec(site);
      const name = layer ? `layer ${layer[1]}` : site;
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(index);
    });
    const used = [...new Set(data.spans.map((span) => String(span.plan_version)))].filter((v) => data.plans[v]);
    const rows = [];
    for (const [name, sites] of groups) {
      rows.push({name, sites, indent: false});
      const odd = sites.filter((site) => used.some((version) => {
        const plan = data.plans[version];
        return plan[site] < Math.max(...sites.map((other) => plan[other]));
      }));
      if (odd.length < sites.length) {
        for (const site of odd) {
          rows.push({name: data.sites[site].replace(/^model\.layers\.\d+\.(self_attn\.|mlp\.)?/, ''), sites: [site], indent: true, full: data.sites[site]});
        }
      }
    }
    return rows;
  }

  function shareOf(plan, row) {
    return row.sites.reduce((sum, site) => sum + plan[site], 0) / (3 * row.sites.length);
  }

  function niceTicks(from, to, wanted) {
    const raw = (to - from) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const ticks = [];
    for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
    return ticks;
  }

  function drawTimeline(host, data) {
    const rows = precisionRows(data);
    const width = Math.max(280, host.clientWidth);
    const gutter = width < 560 ? 84 : 124;
    const right = 10;
    const pitch = rows.length > 24 ? 15 : 19;
    const bar = pitch - 4;
    const top = 4;
    const bottom = top + rows.length * pitch;
    const height = bottom + 42;
    const first = 0;
    const last = Math.max(...data.spans.map((span) => span.to), 1);
    const x = (step) => gutter + (width - gutter - right) * (step - first) / (last - first);
    const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': 'Precision of each layer over steps'});
    for (const tick of niceTicks(first, last, width < 560 ? 4 : 8)) {
      picture.append(svg('line', {x1: x(tick), x2: x(tick), y1: top, y2: bottom + 4, stroke: 'var(--grid)'}));
      picture.append(svg('text', {x: x(tick), y: bottom + 18, 'text-anchor': 'middle'}, count(tick)));
    }
    picture.append(svg('text', {x: (gutter + width - right) / 2, y: bottom + 37, 'text-anchor': 'middle'}, 'step'));
    rows.forEach((row, index) => {
      const y = top + index * pitch;
      const label = svg('text', {x: gutter - 10, y: y + bar - 2, 'text-anchor': 'end', class: row.indent ? '' : 'strong'}, row.name);
      picture.append(label);
      for (const span of data.spans) {
        const plan = data.plans[String(span.plan_version)];
        if (!plan) continue;
        const share = shareOf(plan, row);
        const box = {x: x(span.from - 1), width: Math.max(1, x(span.to) - x(span.from - 1))};
        const inset = row.indent ? 2 : 0;
        const full = bar - 2 * inset;
        const group = svg('g');
        if (share > 0) group.append(svg('rect', {...box, y: y + inset, height: full * share, fill: 'var(--fp8)'}));
        if (share < 1) group.append(svg('rect', {...box, y: y + inset + full * share, height: full * (1 - share), fill: 'var(--bf16)'}));
        group.addEventListener('mousemove', (event) => showTip(event, tipTable(
          `${row.full || row.name}: ${Math.round(100 * share)}% of its GEMMs in FP8`, [
            ['', 'steps', `${count(span.from)}–${count(span.to)}`],
            ['', 'plan version', String(span.plan_version)], ['', 'attempt', String(span.attempt)]])));
        group.addEventListener('mouseleave', hideTip);
        picture.append(group);
      }
    });
    for (const fault of data.faults) {
      const to = fault.end_step > 0 ? Math.min(fault.end_step, last) : last;
      if (fault.start_step > last) continue;
      picture.append(svg('rect', {x: x(fault.start_step - 1), y: bottom + 1, height: 3, fill: 'var(--bad)',
        width: Math.max(2, x(to) - x(fault.start_step - 1))}));
    }
    for (const attempt of data.attempts.slice(1)) {
      picture.append(svg('line', {x1: x(attempt.base_step), x2: x(attempt.base_step), y1: 0, y2: bottom + 5,
        stroke: 'var(--ink)', 'stroke-width': 1.2, 'stroke-dasharray': '4 3'}));
    }
    return picture;
  }

  function precisionTimeline(host, data) {
    if (data.spans.length === 0) {
      host.replaceChildren(element('p', {class: 'empty'}, 'No step has been reported yet.'));
      return;
    }
    const square = (name, fill) => [name, svg('rect', {width: 26, height: 12, fill})];
    const legend = element('ul', {class: 'legend'});
    const entries = [square('FP8', 'var(--fp8)'), square('BF16', 'var(--bf16)')];
    if (data.faults.length) entries.push(['injected fault', svg('rect', {y: 4, width: 26, height: 4, fill: 'var(--bad)'})]);
    if (data.attempts.length > 1) {
      entries.push(['rollback or restart', svg('line', {x1: 13, x2: 13, y1: 0, y2: 12, stroke: 'var(--ink)', 'stroke-dasharray': '4 3'})]);
    }
    for (const [name, draw] of entries) {
      const picture = svg('svg', {viewBox: '0 0 26 12', 'aria-hidden': 'true'});
      picture.append(draw);
      const item = element('li', {}, name);
      item.prepend(picture);
      legend.append(item);
    }
    const place = element('div', {class: 'timeline'});
    host.replaceChildren(legend, place);
    const draw = () => place.replaceChildren(drawTimeline(place, data));
    draw();
    if (!host.gnomonTimeline) window.addEventListener('resize', () => host.gnomonTimeline());
    host.gnomonTimeline = draw;
  }

  Object.assign(gnomon, {precisionTimeline});
})();
