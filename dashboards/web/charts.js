// The charts and tables of the daemon's page and of reports: window.gnomon. Uses Dygraph; everything that is drawn
// takes its colours from the style sheet's variables, so that light and dark follow the reader's choice.
'use strict';
window.gnomon = (() => {
  const SVG = 'http://www.w3.org/2000/svg';
  const charts = new Set();  // functions that draw again, after a change of colours or width

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === 'class') made.className = value; else made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined && child !== ''));
    return made;
  }

  function svg(tag, attributes = {}, text = null) {
    const made = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    return made;
  }

  // ---- words and numbers ----------------------------------------------------------------------------------

  const count = (n) => (typeof n === 'number' ? n.toLocaleString('en') : '–');

  function duration(seconds) {
    if (!(seconds >= 0)) return '–';
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  function percent(value, digits = 3) {
    if (typeof value !== 'number') return '–';
    return `${value > 0 ? '+' : ''}${value.toFixed(digits)}%`;
  }

  const shortSite = (site) => site.replace(/^model\.layers\./, '').replace(/\.(self_attn|mlp)\./, ' · ');

  function sitesInWords(sites) {
    if (!sites || sites.length === 0) return '';
    if (sites.length <= 2) return sites.map(shortSite).join(', ');
    return `${sites.slice(0, 2).map(shortSite).join(', ')} and ${sites.length - 2} more`;
  }

  // ---- tooltip --------------------------------------------------------------------------------------------

  let tip = null;
  function showTip(event, content) {
    if (!tip) document.body.append(tip = element('div', {class: 'tooltip', role: 'status'}));
    tip.replaceChildren(content);
    tip.style.display = 'block';
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 16 + box.width < window.innerWidth;
    tip.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - 16 - box.width)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, window.innerHeight - box.height - 8))}px`;
  }
  function hideTip() { if (tip) tip.style.display = 'none'; }

  function tipTable(title, rows) {
    const body = element('table');
    for (const [swatch, name, value] of rows) {
      const dot = element('span', {class: 'dot'});
      dot.style.background = swatch ? color(swatch) : 'transparent';
      body.append(element('tr', {}, element('td', {}, dot, name), element('td', {}, value)));
    }
    return element('div', {}, element('b', {}, title), body);
  }

  // ---- charts over steps ----------------------------------------------------------------------------------

  // Rows for Dygraph from columns of {points: [[x, y], ...]}: null is "no point here", NaN breaks the line.
  function mergeColumns(columns) {
    const byX = new Map();
    columns.forEach((column, index) => {
      for (const [x, y] of column.points) {
        if (!byX.has(x)) byX.set(x, []);
        const rows = byX.get(x);
        let row = rows.find((candidate) => candidate[index + 1] === null);
        if (!row) rows.push(row = [x, ...columns.map(() => null)]);
        row[index + 1] = y;
      }
    });
    return [...byX.keys()].sort((a, b) => a - b).flatMap((x) => byX.get(x));
  }

  function legendOf(columns, faults, attempts) {
    const list = element('ul', {class: 'legend'});
    const add = (name, draw) => {
      const picture = svg('svg', {viewBox: '0 0 26 12', 'aria-hidden': 'true'});
      picture.append(draw);
      const item = element('li', {}, name);
      item.prepend(picture);
      list.append(item);
    };
    for (const column of columns) {
      if (!column.legend) continue;
      add(column.legend, column.draw
        ? svg('path', {d: 'M13 1 L18.5 11 L7.5 11 Z', fill: `var(${column.color})`}) : column.width === 0
        ? svg('circle', {cx: 13, cy: 6, r: 4, fill: `var(${column.color})`})
        : svg('line', {x1: 0, x2: 26, y1: 6, y2: 6, stroke: `var(${column.color})`,
          'stroke-width': Math.max(column.width, 2), 'stroke-dasharray': (column.dash || []).join(' ')}));
    }
    if (faults.length) add('injected fault', svg('rect', {width: 26, height: 12, fill: 'var(--fault-fill)', stroke: 'var(--fault-line)'}));
    if (attempts.length > 1) {
      add('rollback or restart', svg('line', {x1: 13, x2: 13, y1: 0, y2: 12, stroke: 'var(--mark)', 'stroke-width': 1.5, 'stroke-dasharray': '3 2'}));
    }
    return list;
  }

  function drawUnderlay(context, area, graph, faults, attempts) {
    const [, xMax] = graph.xAxisRange();
    context.save();
    for (const fault of faults) {
      const left = Math.max(area.x, graph.toDomXCoord(fault.start_step - 0.5));
      const end = fault.end_step > 0 ? fault.end_step - 0.5 : xMax;
      const right = Math.min(area.x + area.w, Math.max(left + 2, graph.toDomXCoord(end)));
      if (right <= area.x || left >= area.x + area.w) continue;
      context.fillStyle = color('--fault-fill');
      context.fillRect(left, area.y, right - left, area.h);
      context.fillStyle = color('--fault-line');
      context.fillRect(left, area.y, 1.5, area.h);
    }
    context.strokeStyle = color('--mark');
    context.setLineDash([4, 3]);
    for (const attempt of attempts.slice(1)) {
      const x = Math.round(graph.toDomXCoord(attempt.base_step)) + 0.5;
      if (x < area.x || x > area.x + area.w) continue;
      context.beginPath();
      context.moveTo(x, area.y);
      context.lineTo(x, area.y + area.h);
      context.stroke();
    }
    context.restore();
  }

  // One Dygraph in `host`. `columns`: {label, legend?, color, width, dash?, points, pointSize?, draw?}. `tooltip` gets a
  // step and returns an element, or null. Called again with new data it keeps the reader's zoom.
  function stepChart(host, options) {
    const {columns, faults, attempts, range, yLabel, low, tooltip, yFormat} = options;
    const layout = columns.map((column) => column.label).join('|');
    if (host.gnomonChart && host.gnomonChart.layout === layout) {
      host.gnomonChart.options = options;
      host.gnomonChart.graph.updateOptions({file: mergeColumns(columns), valueRange: range});
      return;
    }
    if (host.gnomonChart) host.gnomonChart.graph.destroy();
    const place = element('div', {class: low ? 'chart low' : 'chart'});
    host.replaceChildren(legendOf(columns, faults, attempts), place);
    const state = {layout, options};
    const series = {};
    const paint = () => {
      for (const column of columns) {
        series[column.label] = {
          color: color(column.color), strokeWidth: column.width, strokePattern: column.dash || null,
          drawPoints: Boolean(column.pointSize), pointSize: column.pointSize || 0,
          highlightCircleSize: Math.max(3, (column.pointSize || 0) + 1),
          ...(column.draw ? {drawPointCallback: column.draw} : {}),
        };
      }
      return {series, gridLineColor: color('--grid'), axisLineColor: color('--line')};
    };
    state.graph = new Dygraph(place, mergeColumns(columns), {
      labels: ['step', ...columns.map((column) => column.label)],
      connectSeparatedPoints: true, legend: 'never', valueRange: range, xlabel: 'step', ylabel: yLabel,
      xRangePad: 4, rightGap: 8, gridLineWidth: 1, highlightCircleSize: 3,
      axes: {y: {axisLabelWidth: 62, axisLabelFormatter: yFormat}, x: {axisLabelFormatter: (x) => count(x)}},
      underlayCallback: (context, area, graph) =>
        drawUnderlay(context, area, graph, state.options.faults, state.options.attempts),
      highlightCallback: (event, x) => {
        const content = state.options.tooltip(x);
        if (content) showTip(event, content); else hideTip();
      },
      unhighlightCallback: hideTip,
      ...paint(),
    });
    host.gnomonChart = state;
    charts.add(() => state.graph.updateOptions(paint()));
  }

  const inWords = (faults, step) => faults
    .filter((f) => step >= f.start_step && (f.end_step === 0 || step < f.end_step))
    .map((f) => ['--fault-line', 'fault', f.kind.replace(/_/g, ' ')]);

  const number = (value) => (typeof value === 'number' ? value : NaN);

  function zip(steps, values) { return steps.map((step, i) => [step, number(values[i])]); }

  // Lines of several windows as one column: broken where a window does not follow directly on another.
  function windowPoints(windows) {
    const points = windows.flatMap((window) => zip(window.steps, window.loss));
    const known = new Set(points.map(([step]) => step));
    for (const window of windows) {
      const last = window.steps[window.steps.length - 1];
      if (last !== undefined && !known.has(last + 1)) points.push([last + 1, NaN]);
    }
    return points;
  }

  // The run's loss, attempt by attempt, and the shadow over it.
  function lossChart(host, data) {
    const kept = [];
    const columns = [];
    for (const attempt of data.attempts) {
      const until = attempt.kept_until ?? Infinity;
      const points = zip(attempt.steps, attempt.loss);
      kept.push(...points.filter(([step]) => step <= until));
      const lost = points.filter(([step]) => step >= until);
      if (lost.length > 1) {
        columns.push({label: `attempt ${attempt.attempt}, thrown away`, color: '--abandoned', width: 1.5, points: lost});
      }
    }
    if (columns.length) columns[0].legend = 'thrown away by a rollback';
    if (kept.length === 0 && columns.length === 0) {
      host.replaceChildren(element('p', {class: 'empty'}, 'No step has been reported yet.'));
      return;
    }
    columns.push({label: 'run', legend: 'the run', color: '--fp8', width: 1.5, points: kept});
    const until = new Map(data.attempts.map((a) => [a.attempt, a.kept_until ?? Infinity]));
    const isKept = (window) => window.steps.length > 0 && window.steps[0] <= until.get(window.attempt);
    columns.push({label: 'shadow', legend: 'BF16 shadow', color: '--bf16', width: 1.5, dash: [4, 2],
      points: windowPoints(data.shadow.filter(isKept))});
    const lostShadow = windowPoints(data.shadow.filter((window) => !isKept(window)));
    if (lostShadow.length) {
      columns.push({label: 'shadow of what was thrown away', color: '--bf16', width: 1, dash: [1, 2], points: lostShadow});
    }

    // The first steep tenth and what was thrown away may leave the picture: the rest is what one looks for.
    const everything = columns.flatMap((column) => column.points).filter(([, y]) => Number.isFinite(y));
    const lastStep = Math.max(...everything.map(([x]) => x));
    const settled = kept.filter(([x, y]) => Number.isFinite(y) && (x > 0.1 * lastStep || lastStep < 20));
    const top = (points) => Math.max(...points.map(([, y]) => y));
    const low = Math.min(...everything.map(([, y]) => y));
    const high = Math.min(top(everything), 1.4 * top(settled.length ? settled : everything));
    const pad = 0.04 * (high - low) || 0.1;
    const at = columns.map((column) => new Map(column.points));
    stepChart(host, {
      columns, faults: data.faults, attempts: data.attempts, range: [low - pad, high + pad],
      yLabel: 'training loss (nats per token)', yFormat: (y) => y.toFixed(2),
      tooltip: (step) => tipTable(`step ${count(step)}`, [
        ...columns.map((column, i) => [column, at[i].get(step)]).filter(([, y]) => Number.isFinite(y))
          .map(([column, y]) => [column.color, column.label, y.toFixed(4)]),
        ...inWords(data.faults, step)]),
    });
  }

  function triangleUp(graph, name, context, x, y, fill, size) {
    context.fillStyle = fill;
    context.beginPath();
    context.moveTo(x, y - size - 1);
    context.lineTo(x - size - 1, y + size);
    context.lineTo(x + size + 1, y + size);
    context.fill();
  }

  function offsetPercent(window) {
    if (typeof window.offset_loss !== 'number' || typeof window.gap !== 'number') return NaN;
    if (typeof window.d_percent !== 'number' || window.d_percent === 0) return NaN;
    return window.offset_loss / (window.gap / window.d_percent);  // gap / D is the loss over 100
  }

  // The gap of each window at its end, with the tolerance and the offset.
  function gapChart(host, data) {
    const measured = data.windows.filter((w) => typeof w.d_percent === 'number');
    if (measured.length === 0) {
      host.replaceChildren(element('p', {class: 'empty'}, 'No window has been measured yet.'));
      return;
    }
    const end = (w) => w.start_step + w.steps;
    const tolerance = Math.max(...measured.map((w) => w.tolerance_percent || 0));
    const cap = Math.max(4 * tolerance, 0.05);
    const clamp = (value) => Math.max(-cap, Math.min(cap, value));
    const until = new Map(data.attempts.map((a) => [a.attempt, a.kept_until ?? Infinity]));
    const isKept = (w) => w.start_step < (until.get(w.attempt) ?? Infinity);
    const points = (list, value) => list.map((w) => [end(w), clamp(value(w))]).sort((a, b) => a[0] - b[0]);
    const gap = (w) => w.d_percent;
    const regular = measured.filter((w) => w.kind !== 'probe' && w.state !== 'alarm' && isKept(w));
    const offsets = measured.filter((w) => w.kind === 'shadow' && Number.isFinite(offsetPercent(w)));
    const limits = measured.map((w) => [end(w), w.tolerance_percent]);
    limits.push([Math.min(0, ...limits.map(([x]) => x)), tolerance]);
    const alarms = measured.filter((w) => w.state === 'alarm');
    const columns = [
      {label: 'tolerance', legend: 'tolerance', color: '--tolerance', width: 1.5, dash: [6, 4], points: limits},
      {label: 'offset', legend: 'offset', color: '--offset', width: 1, pointSize: 2.5, points: points(offsets, offsetPercent)},
      {label: 'gap', legend: 'gap', color: '--fp8', width: 1.5, pointSize: 3.5, points: points(regular, gap)},
      {label: 'gap, thrown away', legend: measured.some((w) => !isKept(w) && w.state !== 'alarm') ? 'gap, thrown away' : '',
        color: '--abandoned', width: 0, pointSize: 3.5,
        points: points(measured.filter((w) => w.kind !== 'probe' && w.state !== 'alarm' && !isKept(w)), gap)},
      {label: 'probe of FP8', legend: measured.some((w) => w.kind === 'probe') ? 'FP8 probe while in BF16' : '',
        color: '--probe', width: 0, pointSize: 4, points: points(measured.filter((w) => w.kind === 'probe' && w.state !== 'alarm'), gap)},
      {label: 'alarm', legend: alarms.some((w) => Math.abs(gap(w)) > cap) ? 'alarm (at the edge: beyond the scale)' : 'alarm', color: '--bad', width: 0, pointSize: 5,
        points: points(alarms, gap), draw: triangleUp},
    ].filter((column) => column.points.length > 0);
    const values = columns.flatMap((column) => column.points.map(([, y]) => y));
    const low = Math.min(0, ...values);
    const high = Math.max(0, ...values);
    const pad = 0.08 * (high - low) || 0.1;
    stepChart(host, {
      columns, faults: data.faults, attempts: data.attempts, range: [low - pad, high + pad], low: true,
      yLabel: 'share of the loss (%)', yFormat: (y) => y.toFixed(2),
      tooltip: (step) => {
        const here = measured.filter((w) => end(w) === step);
        if (here.length === 0) return null;
        return element('div', {}, ...here.map((w) => tipTable(
          `window ${w.window}: ${w.kind}, ${w.state}, steps ${w.start_step + 1}–${end(w)}`, [
            [w.state === 'alarm' ? '--bad' : '--fp8', 'gap', percent(w.d_percent)],
            ['--tolerance', 'tolerance', percent(w.tolerance_percent)],
            ...(Number.isFinite(offsetPercent(w)) ? [['--offset', 'offset', percent(offsetPercent(w))]] : []),
            ...inWords(data.faults, step)])));
      },
    });
  }

  // ---- precision timeline ---------------------------------------------------------------------------------

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

  // ---- tiles and decisions --------------------------------------------------------------------------------

  // [name, value, more, class] each.
  function tiles(host, list) {
    host.replaceChildren(...list.map(([name, value, more, tone]) => element('div', {class: 'tile'},
      element('div', {class: 'name'}, name), element('div', {class: `value ${tone || ''}`}, value),
      element('div', {class: 'more'}, more || ''))));
  }

  function evidenceText(value) {
    if (typeof value === 'number' && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
    if (value !== null && typeof value === 'object') return JSON.stringify(value);
    return String(value);
  }

  function evidenceList(evidence) {
    const list = element('dl', {class: 'evidence'});
    for (const [key, value] of Object.entries(evidence)) {
      list.append(element('dt', {}, key.replace(/_/g, ' ')), element('dd', {}, evidenceText(value)));
    }
    return list;
  }

  function decisionRow(decision, start) {
    const time = element('td', {class: 'number', title: new Date(decision.time * 1000).toLocaleString()}, duration(decision.time - start));
    const what = element('td', {class: 'what'}, element('div', {class: 'sentence'}, decision.sentence));
    if (decision.sites.length) {
      what.append(element('div', {class: 'site quiet'}, decision.sites.join(', ')));
    }
    if (decision.action !== 'none' && !decision.enforced) what.append(element('div', {class: 'quiet'}, 'Not enforced: it says what would have been done.'));
    const evidence = decision.evidence;
    if (evidence && typeof evidence === 'object' && Object.keys(evidence).length) {
      what.append(element('details', {}, element('summary', {}, 'evidence'), evidenceList(evidence)));
    }
    return element('tr', {}, time, element('td', {class: 'number'}, `step ${count(decision.step)}`),
      element('td', {}, element('span', {class: `chip ${decision.kind}`}, decision.kind)), what);
  }

  // `start`: seconds since the epoch that times are counted from.
  function decisionsTable(host, decisions, start) {
    if (decisions.length === 0) {
      host.replaceChildren(element('p', {class: 'empty'}, 'No decision was needed.'));
      return;
    }
    const open = new Set([...host.querySelectorAll('details[open]')].map((d) => d.dataset.decision));
    const body = element('tbody');
    for (const decision of decisions) {
      const row = decisionRow(decision, start);
      const details = row.querySelector('details');
      if (details) {
        details.dataset.decision = String(decision.decision);
        details.open = open.has(details.dataset.decision);
      }
      body.append(row);
    }
    const head = element('tr', {}, ...['after', 'at', 'kind', 'what and why'].map((name) => element('th', {}, name)));
    host.replaceChildren(element('table', {class: 'decisions'}, element('thead', {}, head), body));
  }

  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => charts.forEach((draw) => draw()));

  return {count, decisionsTable, duration, element, gapChart, lossChart, percent, precisionTimeline, sitesInWords, tiles};
})();
