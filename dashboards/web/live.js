// The daemon's page: lists the runs and follows one of them (#run-1 in the address) by asking for what is new every two
// seconds. Charts and tables are those of the files beside it.
'use strict';
(() => {
  const kIntervalMs = 2000;
  const kStepsShown = 4000;
  const place = (id) => document.getElementById(id);
  let shown = '';  // the run that the charts are of
  let drawn = '';  // what the charts show, so that they are drawn again only when something is new

  // Where the daemon has tokens, the reader's own is sent with each request.
  const kTokenKey = 'gnomon-token';
  class TokenWanted extends Error {}

  let skew = 0;  // seconds that the daemon's clock is ahead of the reader's
  const nowOfDaemon = () => Date.now() / 1000 + skew;

  async function ask(path) {
    const token = sessionStorage.getItem(kTokenKey);
    const headers = {Accept: 'application/json'};
    if (token) headers.Authorization = `Bearer ${token}`;
    const answer = await fetch(path, {headers});
    const date = Date.parse(answer.headers.get('Date'));
    if (date) skew = (date - Date.now()) / 1000;
    if (answer.status === 401) throw new TokenWanted(token ? 'This token is not accepted.' : 'This daemon answers to tokens.');
    return answer;
  }

  function askForToken(why) {
    if (why) place('run').hidden = true;
    place('token-form').hidden = !why;
    place('token-why').textContent = why;
  }

  place('token-form').addEventListener('submit', (event) => {
    event.preventDefault();
    sessionStorage.setItem(kTokenKey, place('token').value.trim());
    place('token').value = '';
    drawn = '';
    look();
  });

  // An answer; of a list, all its pages (Link: <…>; rel="next").
  async function whole(path, answer) {
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    const found = await answer.json();
    const next = /^<([^>]*)>; rel="next"/.exec(answer.headers.get('Link') || '');
    return next ? found.concat(await get(next[1])) : found;
  }

  async function get(path) {
    return whole(path, await ask(path));
  }

  // Rows; none where the daemon is older than this page.
  async function rows(path) {
    const answer = await ask(path);
    return answer.status === 404 ? [] : whole(path, answer);
  }

  // One object; null where the daemon is older than this page.
  async function object(path) {
    const found = await rows(path);
    return Array.isArray(found) ? null : found;
  }

  function wantedName() {
    try { return decodeURIComponent(location.hash.slice(1)); } catch { return location.hash.slice(1); }
  }

  // The run in the address, by id, name/job or name (its newest job); without one, the newest. Undefined: no such run.
  function chosen(runs) {
    const wanted = wantedName();
    if (!wanted) return runs[runs.length - 1];
    return runs.findLast((run) => [run.run, run.name, `${run.name}/${run.job_id}`].includes(wanted));
  }

  function sayUnknown(runs, selected) {
    const wanted = wantedName();
    place('unknown').hidden = Boolean(selected) || !wanted;
    place('unknown').textContent = `There is no run ${wanted} here. ` + (runs.length ? 'Choose one of the list above.' : '');
    if (selected) return;
    place('run').hidden = true;
    place('title').textContent = 'Runs';
    drawn = '';
  }

  // Live ones first, the newest first; the list scrolls where they are many.
  function listRuns(runs, selected) {
    place('no-runs').hidden = runs.length > 0;
    place('runs-table').hidden = runs.length === 0;
    const listed = [...runs].sort((a, b) => (b.state === 'live') - (a.state === 'live') || b.id - a.id);
    place('runs').replaceChildren(...listed.map((run) => {
      const link = gnomon.element('a', {href: `#${run.run}`}, `${run.name}/${run.job_id}`);
      const loss = typeof run.loss === 'number' ? run.loss.toFixed(4) : '–';
      const row = gnomon.element('tr', {}, ...[link, run.state === 'live' ? gnomon.verdictChip(run.verdict) : run.state, run.phase, gnomon.count(run.step), loss, gnomon.count(run.decisions)]
        .map((cell) => gnomon.element('td', {}, cell)));
      if (selected && run.run === selected.run) row.setAttribute('aria-selected', 'true');
      return row;
    }));
  }

  // An attempt is kept up to the first step that a later one began anew from.
  function attemptsOf(run, steps) {
    return run.attempts.map((attempt) => {
      const later = run.attempts.filter((other) => other.attempt > attempt.attempt).map((other) => other.base_step);
      const own = steps.filter((step) => step.attempt === attempt.attempt);
      return {
        attempt: attempt.attempt, base_step: attempt.base_step, cause: attempt.cause,
        kept_until: later.length ? Math.min(...later) : null,
        steps: own.map((step) => step.step), loss: own.map((step) => step.loss),
      };
    });
  }

  function shadowOf(rows) {
    const windows = new Map();
    for (const row of rows) {
      if (!windows.has(row.window)) windows.set(row.window, {window: row.window, attempt: row.attempt, steps: [], loss: []});
      windows.get(row.window).steps.push(row.step);
      windows.get(row.window).loss.push(row.loss);
    }
    return [...windows.values()];
  }

  function spansOf(attempts, steps) {
    const until = new Map(attempts.map((attempt) => [attempt.attempt, attempt.kept_until ?? Infinity]));
    const spans = [];
    for (const step of steps) {
      if (step.step > until.get(step.attempt)) continue;
      const last = spans[spans.length - 1];
      if (last && last.plan_version === step.plan_version && last.attempt === step.attempt) {
        last.to = step.step;
      } else {
        spans.push({from: last ? last.to + 1 : step.step, to: step.step, plan_version: step.plan_version, attempt: step.attempt});
      }
    }
    return spans;
  }

  // By plan version, for each site the number of its GEMMs in FP8. A version never changes: asked for once.
  const known = new Map();
  async function precisions(base, steps) {
    const versions = [...new Set(steps.map((step) => step.plan_version))];
    const entries = await Promise.all(versions.map(async (version) => {
      const path = `${base}/layers?plan_version=${version}`;
      if (!known.has(path)) known.set(path, await get(path));
      return [version, known.get(path).map((site) => ['fprop', 'dgrad', 'wgrad'].filter((gemm) => site[gemm] === 'fp8').length)];
    }));
    return Object.fromEntries(entries);
  }

  function showTiles(run, windows, economics) {
    const measured = windows.find((window) => window.window === run.measured_window);
    const above = measured && measured.d_percent > measured.tolerance_percent;
    gnomon.tiles(place('tiles'), [
      ['Verified', run.verified_step === null ? 'nothing' : `to step ${gnomon.count(run.verified_step)}`,
        `${gnomon.count(run.verification_lag_steps)} steps since; ${run.phase}, mode ${run.mode}`],
      ['Step', gnomon.count(run.step), `of ${gnomon.count(run.registration.total_steps)}, attempt ${run.attempt ?? 1}`],
      ['Loss', typeof run.loss === 'number' ? run.loss.toFixed(4) : '–', 'training, nats per token'],
      ['Gap', measured ? gnomon.percent(measured.d_percent) : '–',
        measured ? `tolerance ${gnomon.percent(measured.tolerance_percent)}, window ${measured.window}` : 'no window measured yet', above ? 'bad' : ''],
      gnomon.netSpeedupTile(economics, '', ['good', 'contained', 'ended'].includes(run.verdict)),
    ]);
  }

  // With every look: it changes with the clock alone, too.
  function showVerdict(run) {
    const now = nowOfDaemon();
    gnomon.verdictBanner(place('verdict'), run.verdict, run.verdict_sentence, run.verdict_since, now);
    place('reported').textContent = run.reported_at
      ? `The newest report of a step came ${gnomon.duration(Math.max(0, now - run.reported_at))} ago, of step ${gnomon.count(run.step)}.`
      : 'No step has been reported yet.';
  }

  function showDevice(run) {
    place('device').hidden = !run.device_health;
    if (run.device_health) gnomon.deviceLine(place('device'), run.device_health, nowOfDaemon());
  }

  function showOrdersAndNotices(run, overrides, directives, notices) {
    place('overrides-section').hidden = overrides.length === 0;
    gnomon.overridesTable(place('overrides'), run, overrides, directives, nowOfDaemon());
    place('notices-section').hidden = notices.length === 0;
    gnomon.noticesTable(place('notices'), notices, run.registered_at);
  }

  const kTensorsShown = 12;
  function showTensors(reports) {
    const newest = reports[reports.length - 1];
    place('tensors-section').hidden = !newest || newest.rows.length === 0;
    if (!newest) return;
    place('tensors-note').textContent = `Step ${gnomon.count(newest.step)}: the largest underflow of roundings in use (nonzero elements that became 0).`;
    gnomon.tensorsTable(place('tensors'), newest.rows, kTensorsShown);
  }

  // `wanted()` says whether this look is still the newest one: the reader may have chosen another run meanwhile.
  async function showRun(summary, wanted) {
    const base = `/v1/runs/${summary.run}`;
    const every = Math.max(1, Math.ceil((summary.step || 1) / kStepsShown));
    const version = [summary.run, summary.step, summary.attempt, summary.phase, summary.state, summary.verification_lag_steps, summary.verdict].join();
    const [run, windows, decisions, directives, overrides, notices] = await Promise.all([get(base),
      ...['windows', 'decisions', 'directives', 'overrides', 'notices'].map((name) => rows(`${base}/${name}`))]);
    if (!wanted()) return;
    for (const window of windows) window.d_percent = gnomon.real(window.d_percent);
    if (shown !== summary.run) place('run').hidden = true;
    showVerdict(run);
    gnomon.pauseBanner(place('pause'), run, directives);
    showDevice(run);
    showOrdersAndNotices(run, overrides, directives, notices);
    const key = [version, windows.map((window) => window.state).join(), decisions.length].join();
    if (key === drawn) return;
    const [steps, shadow, statistics, economics] = await Promise.all([get(`${base}/steps?every=${every}`), get(`${base}/shadow`),
      rows(`${base}/statistics?worst=underflow&rows=${2 * kTensorsShown}`), run.set_aside ? null : object(`${base}/economics`)]);
    const plans = await precisions(base, steps);
    if (!wanted()) return;
    if (shown !== summary.run) {
      ['loss', 'gap'].forEach((id) => gnomon.dropChart(place(id)));
      gnomon.dropNetSpeedup(place('net-speedup'));
      shown = summary.run;
    }
    const attempts = attemptsOf(run, steps);
    const data = {
      attempts, windows, faults: run.faults, sites: run.registration.sites, shadow: shadowOf(shadow),
      spans: spansOf(attempts, steps), plans,
    };
    place('title').textContent = `${run.name}/${run.job_id}`;
    place('run').hidden = false;
    showTiles(run, windows, economics);
    gnomon.lossChart(place('loss'), data);
    gnomon.gapChart(place('gap'), data);
    gnomon.netSpeedup(place('net-speedup'), economics, data);
    gnomon.precisionTimeline(place('precision'), data);
    showTensors(statistics);
    const told = decisions.map((decision) => ({
      ...decision, enforced: Boolean(decision.enforced),
      sites: typeof decision.sites === 'string' ? JSON.parse(decision.sites) : decision.sites,
      evidence: typeof decision.evidence === 'string' ? JSON.parse(decision.evidence) : decision.evidence,
    }));
    gnomon.decisionsTable(place('decisions'), told, run.registered_at);
    drawn = key;
  }

  let newest = 0;  // look() that is the last one started: only that one starts the next
  async function look() {
    const mine = ++newest;
    try {
      const runs = await get('/v1/runs');
      const selected = chosen(runs);
      listRuns(runs, selected);
      sayUnknown(runs, selected);
      if (selected) await showRun(selected, () => mine === newest);
      place('away').hidden = true;
      place('run').classList.remove('stale');
      askForToken('');
    } catch (error) {
      const wanted = error instanceof TokenWanted;
      askForToken(wanted ? error.message : '');
      place('away').hidden = wanted;
      place('run').classList.add('stale');
      place('away').textContent = `The controller does not answer (${error.message}); trying again. What stands below is of the last answer.`;
    }
    setTimeout(() => { if (mine === newest) look(); }, kIntervalMs);
  }

  for (const element of document.querySelectorAll('.origin')) element.textContent = location.origin;
  window.addEventListener('hashchange', () => { drawn = ''; look(); });
  look();
})();
