// Tiles with key numbers, and decisions, notices and orders in words.
'use strict';
(() => {
  const {count, duration, element, shortSite} = gnomon;

  // [name, value, more, class] each.
  function tiles(host, list) {
    host.replaceChildren(...list.map(([name, value, more, tone]) => element('div', {class: 'tile'},
      element('div', {class: 'name'}, name), element('div', {class: `value ${tone || ''}`}, value),
      element('div', {class: 'more'}, more || ''))));
  }

  function evidenceText(value, unit) {
    if (value !== null && typeof value === 'object') return JSON.stringify(value);
    return `${typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(4)) : value}${unit}`;
  }

  // Names and units, where the key itself does not say them.
  const kEvidenceUnits = [[/_percent$/, '%'], [/_seconds$/, ' s'], [/_steps$/, ' steps']];
  const kEvidenceNames = {
    d_percent: 'D', scale_percent: 'noise of D', null_percent: 'D that is tolerated', x: 'D above that, in deviations',
    freedom: 'degrees of freedom of the noise', gap: 'gap (nats)', offset: 'offset (nats)', bf16_loss: 'BF16 loss (nats)',
  };

  function evidenceList(evidence) {
    const list = element('dl', {class: 'evidence'});
    for (const [key, value] of Object.entries(evidence)) {
      const [suffix, unit] = kEvidenceUnits.find(([end]) => end.test(key)) || [/$/, ''];
      const name = kEvidenceNames[key] || key.replace(suffix, '').replace(/_/g, ' ');
      list.append(element('dt', {}, name), element('dd', {}, evidenceText(value, unit)));
    }
    return list;
  }

  function decisionRow(decision, start) {
    const time = element('td', {class: 'number', title: new Date(decision.time * 1000).toLocaleString()}, duration(decision.time - start));
    const what = element('td', {class: 'what'}, element('div', {class: 'sentence'}, decision.sentence));
    const said = [decision.verdict !== 'none' && decision.kind === 'verdict' ? `verdict: ${decision.verdict.replace(/_/g, ' ')}` : '',
      decision.action !== 'none' ? `action: ${decision.action}` : ''].filter(Boolean).join(' · ');
    if (said) what.append(element('div', {class: 'quiet'}, said));
    if (decision.device_errors) what.append(element('div', {class: 'bad'}, `Beside it: ${decision.device_errors}.`));
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

  // ---- orders and notices ----------------------------------------------------------

  // [heading, class of its cells] each; `rows` are lists of cells.
  function table(headings, rows) {
    const head = element('tr', {}, ...headings.map(([name]) => element('th', {}, name)));
    const body = rows.map((cells) => element('tr', {}, ...cells.map((cell, i) => element('td', {class: headings[i][1]}, cell))));
    return element('table', {class: 'decisions'}, element('thead', {}, head), element('tbody', {}, ...body));
  }

  const moment = (time, start) => element('span', {title: new Date(time * 1000).toLocaleString()}, duration(time - start));

  // Among overrides of one kind that hold for a time, only the newest can hold; and none that the trainer has refused.
  function standing(override, run, overrides, directives, now) {
    const order = directives.find((one) => one.number === override.directive);
    if (order && ['rejected', 'expired'].includes(order.state)) return 'not taken';
    if (typeof override.expires_at !== 'number') return 'one order';
    if (overrides.some((other) => other.kind === override.kind && other.override > override.override)) return 'replaced';
    if (override.expires_at <= now || run.state !== 'live') return 'over';
    return `for ${duration(override.expires_at - now)} more`;
  }

  // `now`: seconds since the epoch.
  function overridesTable(host, run, overrides, directives, now) {
    host.replaceChildren(table([['after', 'number'], ['holds', 'number'], ['kind', ''], ['who and why', 'what']], overrides.map((one) => [
      moment(one.asked_at, run.registered_at), standing(one, run, overrides, directives, now), element('span', {class: 'chip override'}, one.kind + (one.mode ? ` ${one.mode}` : '')),
      element('div', {class: 'sentence'}, `${one.owner}: ${one.reason}`)])));
  }

  function noticesTable(host, notices, start) {
    host.replaceChildren(table([['after', 'number'], ['at', 'number'], ['kind', ''], ['what', 'what']], notices.map((one) => [
      moment(one.noticed_at, start), `step ${count(one.step)}`, element('span', {class: 'chip notice'}, one.kind.replace(/_/g, ' ')),
      element('div', {class: 'sentence'}, one.text)])));
  }

  // ---- what rounding does to tensors -----------------------------------------------------------------------

  // Three digits, and never rounded to 0.
  function digits(value) {
    return typeof value === 'number' ? String(Number(value.toPrecision(3))) : value === 'Infinity' ? '∞' : '–';
  }
  const share = (value) => (typeof value === 'number' ? `${digits(100 * value)}%` : '–');

  // GEMMs that round a tensor alike stand together.
  function alike(rows) {
    const groups = new Map();
    for (const row of rows) {
      const key = [row.site, row.tensor, row.recipe, row.underflow, row.saturation, row.sqnr_db].join();
      if (groups.has(key)) groups.get(key).gemm += `, ${row.gemm}`; else groups.set(key, {...row});
    }
    return [...groups.values()];
  }

  // Shows at most `most` lines of a statistics report's roundings in use, which come worst first.
  function tensorsTable(host, report, most) {
    const headings = [['site', ''], ['tensor', ''], ['GEMM', ''], ['recipe', ''], ['underflow', 'number'], ['saturation', 'number'], ['SQNR, dB', 'number']];
    const head = element('tr', {}, ...headings.map(([name, kind]) => element('th', {class: kind}, name)));
    const body = alike(report).slice(0, most).map((row) => {
      const cells = [element('span', {class: 'site', title: row.site}, shortSite(row.site)), row.tensor, row.gemm, row.recipe,
        share(row.underflow), share(row.saturation), digits(row.sqnr_db)];
      return element('tr', {}, ...cells.map((cell, i) => element('td', {class: headings[i][1], 'data-name': headings[i][0]}, cell)));
    });
    host.replaceChildren(element('table', {class: 'tensors'}, element('thead', {}, head), element('tbody', {}, ...body)));
  }

  // ---- how the GPU is --------------------------------------------------------------------------------------

  const kThrottledByHeatOrPower = ['hw_slowdown', 'sw_thermal_slowdown', 'hw_thermal_slowdown', 'hw_power_brake'];

  // One line about the GPU of a row of device_health; `now` in seconds since the epoch. What it does not say is left out.
  function deviceLine(host, row, now) {
    const health = row.body;
    const known = (value, text) => (typeof value === 'number' ? text(value) : '');
    const gigabytes = (bytes) => (bytes / 1024 ** 3).toFixed(1);
    const reasons = (health.throttle_reasons || []).filter((reason) => reason !== 'idle');
    const facts = health.error ? [health.error] : [
      known(health.sm_clock_mhz, (mhz) => `${count(mhz)} MHz`),
      known(health.power_watts, (watts) => `${watts.toFixed(0)}${known(health.power_limit_watts, (limit) => ` of ${limit.toFixed(0)}`)} W`),
      known(health.temperature_celsius, (celsius) => `${celsius} °C`),
      known(health.utilization_percent, (share) => `${share}% busy`),
      known(health.memory_total_bytes, (total) => `${gigabytes(health.memory_used_bytes)} of ${gigabytes(total)} GiB`),
      known(health.ecc_corrected, (errors) => `${count(errors)} ECC errors corrected`),
      known(health.ecc_uncorrected, (errors) => `${count(errors)} ECC errors uncorrected`),
      reasons.length ? `throttled by ${reasons.join(', ').replace(/_/g, ' ')}` : '',
      health.remapped_rows_pending ? 'memory rows wait for a reset' : '',
      health.remapped_rows_failure ? 'memory rows could not be replaced' : '',
    ].filter(Boolean);
    const bad = health.error || health.ecc_uncorrected > 0 || health.remapped_rows_failure
      || reasons.some((reason) => kThrottledByHeatOrPower.includes(reason));
    const who = `GPU ${row.device}${row.host ? ` of ${row.host}` : ''}${health.name ? ` (${health.name})` : ''}`;
    host.className = bad ? 'note bad' : 'note';
    host.textContent = `${who}: ${facts.join(', ') || 'tells nothing'}; ${duration(Math.max(0, now - row.reported_at))} ago`;
  }

  // The pause that the run stands in, or null: {pause, stage} with stage "paused" or "pausing".
  function pauseOf(run, directives) {
    if (run.state !== 'live') return null;
    const ordered = directives.filter((one) => ['pause', 'resume'].includes(one.kind) && !['rejected', 'expired'].includes(one.state));
    const pause = ordered[ordered.length - 1];
    if (!pause || pause.kind !== 'pause') return null;
    if (pause.state !== 'applied') return {pause, stage: 'pausing'};
    return run.decision_state && !run.decision_state.paused ? null : {pause, stage: 'paused'};
  }

  // Fills `host` with why the run stands still and how it goes on; hides it when the run does not.
  function pauseBanner(host, run, directives) {
    const found = pauseOf(run, directives);
    host.hidden = !found;
    if (!found) return;
    const {pause, stage} = found;
    const what = stage === 'pausing' ? 'A pause is on its way to the trainer.'
      : `${run.phase === 'holding' ? 'Held' : 'Paused'} at step ${count(pause.applied_step)}. It stays so until somebody orders it to go on.`;
    host.replaceChildren(element('strong', {}, what), element('div', {}, pause.reason),
      element('div', {}, 'To go on: ', element('code', {}, `gnomon override ${run.name}/${run.job_id} resume --reason "..."`)));
  }

  // ---- the run's verdict -----------------------------------------------------------------------------------

  const verdictWord = (verdict) => (verdict || 'unknown').replace(/_/g, ' ');

  const verdictChip = (verdict) => element('span', {class: `verdict-chip verdict-${verdict || 'unknown'}`}, verdictWord(verdict));

  // What to know of the run before anything else. `since` in seconds since the epoch, or null.
  function verdictBanner(host, verdict, sentence, since, now) {
    host.hidden = !verdict;
    if (!verdict) return;
    host.className = `verdict verdict-${verdict}`;
    const when = since ? `since ${new Date(since * 1000).toLocaleString()} (${duration(Math.max(0, now - since))})` : '';
    host.replaceChildren(element('div', {class: 'verdict-head'}, element('strong', {}, verdictWord(verdict)), element('span', {}, when)),
      element('p', {}, sentence));
  }

  Object.assign(gnomon, {verdictBanner, verdictChip, decisionsTable, deviceLine, noticesTable, overridesTable, pauseBanner, tensorsTable, tiles});
})();
