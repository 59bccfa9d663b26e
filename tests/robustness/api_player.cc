#include "tests/robustness/api_player.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <csignal>

#include "base/files.h"
#include "base/sha256.h"
#include "controller/auth/tokens.h"
#include "tests/robustness/findings.h"

namespace gnomon::robustness {
namespace {

constexpr int kRuns = 3;
constexpr double kEndlessLeaseSeconds = 600;  // no lease ends by itself while a sequence lasts
constexpr size_t kLineBytes = 600;
constexpr uint64_t kCallStreams = 20'000;

std::string shortened(const std::string& text) {
  return text.size() <= kLineBytes ? text : text.substr(0, kLineBytes) + "…";
}

bool is_text(const std::string& target) {
  return target.starts_with("/metrics") || target == "/" || target.ends_with("/policy");
}

// What a problem document must have.
bool is_problem(const boost::json::value& body, int status) {
  const boost::json::object* object = body.if_object();
  if (object == nullptr || !object->contains("title") || !object->contains("status")) return false;
  return object->at("status").is_number() && object->at("status").to_number<int>() == status;
}

}  // namespace

ApiPlayer::ApiPlayer(uint64_t seed) : seed_(seed), with_tokens_(seed % 3 != 0) {
  Draw draw(seed, 1);
  for (int number = 0; number < kRuns; ++number) {
    ApiRun run;
    run.scenario.seed = seed;
    run.scenario.number = number;
    run.scenario.steps = 1000;
    if (draw.chance(0.5)) run.scenario.gap_from = draw.between(5, 60);
    if (draw.chance(0.3)) run.scenario.blow_up_at = draw.between(1, 60);
    model_.runs.push_back(run);
  }
  std::string config = "[backup]\nfolder = \"backups\"\nkeep = 3\n";
  std::filesystem::create_directory(folder_ / "backups");
  if (with_tokens_) {
    config +=
        "[auth]\ntokens = \"tokens.toml\"\nrequests_per_second = 0\n"
        "stranger_requests_per_second = 0\n";
    const std::vector<std::pair<const char*, const char*>> principals = {
        {"trainer", "trainer"},   {"first", "verifier"}, {"second", "verifier"},
        {"operator", "operator"}, {"admin", "admin"},    {"reader", "reader"}};
    edit_tokens(folder_ / "tokens.toml", [&](std::vector<Token>& tokens) {
      for (const auto& [name, role] : principals) {
        secrets_[name] = make_secret();
        tokens.push_back({name, *role_from_name(role), sha256_hex(secrets_[name]), 1, 0, {}});
      }
    });
  }
  write_file_atomically(folder_ / "gnomond.toml", config);
  daemon_ = std::make_unique<test::DaemonProcess>(
      std::vector<std::string>{"--config", (folder_ / "gnomond.toml").string()},
      policy_text(kEndlessLeaseSeconds));
  start();
}

void ApiPlayer::broken(const std::string& rule, const std::string& what) const {
  throw BrokenRule(rule, what);
}

void ApiPlayer::start() {
  clients_.clear();
  ++counts_["starts"];
  try {
    daemon_->start();
  } catch (const Error& error) {
    const std::string log = error.what();
    broken("gnomond starts", "gnomond did not start; its log ends so: " +
                                 log.substr(log.size() - std::min<size_t>(log.size(), 1500)));
  }
}

HttpClient& ApiPlayer::client_of(const std::string& principal) {
  std::unique_ptr<HttpClient>& client = clients_[with_tokens_ ? principal : "anybody"];
  if (!client) {
    ClientOptions options;
    options.url = daemon_->url();
    if (with_tokens_) options.token = secrets_.at(principal);
    client = std::make_unique<HttpClient>(options);
  }
  return *client;
}

HttpResponse ApiPlayer::ask(const std::string& principal, const std::string& method,
                            const std::string& target, const std::string& body) {
  std::string line = fmt::format("{}: {} {} {}", principal, method, target, shortened(body));
  lines_.push_back(line + " → no answer");
  ++counts_["requests"];
  HttpResponse response;
  try {
    response = client_of(principal).request(method, target, body);
  } catch (const ConnectionError& error) {
    broken("every request is answered",
           fmt::format("{} was not answered ({}); gnomond {}", line, error.what(),
                       daemon_->running() ? "runs" : "has ended"));
  }
  line += fmt::format(" → {} {}", response.status, shortened(response.body));
  lines_.back() = line;
  ++counts_[fmt::format("answers {}xx", response.status / 100)];
  const bool may_wait = response.status == 503 || response.status == 507;
  if (response.status >= 500 && !(may_wait && response.retry_after > 0)) {
    broken(method == "GET" ? "no GET is a 5xx" : "no answer is a 5xx", line);
  }
  if (response.body.empty() || (response.status < 400 && is_text(target))) return response;
  boost::system::error_code error;
  const boost::json::value parsed = boost::json::parse(response.body, error);
  if (error) broken("every answer is JSON", line);
  if (response.status >= 400 && !is_problem(parsed, response.status)) {
    broken("a refusal is a problem document", line);
  }
  return response;
}

HttpResponse ApiPlayer::must(int status, const std::string& principal, const std::string& method,
                             const std::string& target, const std::string& body) {
  HttpResponse response = ask(principal, method, target, body);
  if (response.status != status) {
    broken(fmt::format("{} {} is answered {}", method, target.substr(0, target.find('?')), status),
           fmt::format("expected {}: {}", status, lines_.back()));
  }
  return response;
}

void ApiPlayer::must_refuse(const std::string& principal, const std::string& method,
                            const std::string& target, const std::string& body) {
  const HttpResponse response = ask(principal, method, target, body);
  if (response.status < 400) broken("what is wrong is refused", lines_.back());
}

ApiPlayer::Json ApiPlayer::rows(const std::string& target) {
  boost::json::array all;
  for (std::string next = target; !next.empty();) {
    const HttpResponse response = must(200, "reader", "GET", next);
    const boost::json::value page = boost::json::parse(response.body);
    for (const Json& row : page.as_array()) all.push_back(row);
    next = response.next;
  }
  return all;
}

ApiRun& ApiPlayer::drawn_run(Draw& draw) {
  return model_.runs[static_cast<size_t>(draw.between(0, kRuns - 1))];
}

ApiRun& ApiPlayer::drawn_known_run(Draw& draw) {
  ApiRun& run = drawn_run(draw);
  if (!run.registered()) register_run(run);
  return run;
}

const std::vector<ApiPlayer::Kind>& ApiPlayer::kinds() {
  using P = ApiPlayer;
  static const std::vector<Kind> all = {{"train", 30, &P::train},
                                        {"register", 3, &P::register_otherwise},
                                        {"attempts", 6, &P::attempts},
                                        {"steps", 12, &P::steps},
                                        {"extreme step", 6, &P::extreme_step},
                                        {"checkpoints", 4, &P::checkpoints},
                                        {"finished", 5, &P::finished},
                                        {"notices", 3, &P::notices},
                                        {"statistics", 2, &P::statistics},
                                        {"poll", 8, &P::poll_directives},
                                        {"acknowledge", 8, &P::acknowledge},
                                        {"lease", 14, &P::lease},
                                        {"heartbeat", 3, &P::heartbeat},
                                        {"complete", 14, &P::complete},
                                        {"complete badly", 4, &P::complete_badly},
                                        {"fail", 2, &P::fail},
                                        {"override", 6, &P::override_run},
                                        {"policy", 2, &P::policy},
                                        {"end", 2, &P::end_run},
                                        {"delete", 1, &P::delete_run},
                                        {"read", 10, &P::read_anything},
                                        {"events", 2, &P::follow_events},
                                        {"backup", 1, &P::back_up},
                                        {"damaged body", 4, &P::damaged_body},
                                        {"restart", 5, &P::restart}};
  return all;
}

void ApiPlayer::play(int64_t call) {
  Draw draw(seed_, kCallStreams + static_cast<uint64_t>(call));
  int64_t weights = 0;
  for (const Kind& kind : kinds()) weights += kind.weight;
  int64_t at = draw.between(0, weights - 1);
  for (const Kind& kind : kinds()) {
    at -= kind.weight;
    if (at >= 0) continue;
    lines_.push_back(fmt::format("call {}: {}", call, kind.name));
    ++counts_[fmt::format("calls {}", kind.name)];
    (this->*kind.play)(draw);
    break;
  }
  look_at_runs();
  if (draw.chance(0.04)) look_closely();
}

// With a signal that it cannot hear, or one that it obeys.
void ApiPlayer::restart(Draw& draw) {
  const bool killed = draw.chance(0.7);
  lines_.push_back(killed ? "SIGKILL" : "SIGTERM");
  if (killed) {
    daemon_->kill();
  } else if (const int status = daemon_->stop(); status != 0) {
    broken("SIGTERM ends gnomond with 0", fmt::format("it ended with {}", status));
  }
  if (draw.chance(0.3)) check_replays();
  start();
  look_closely();
}

// A list of all runs, each in the state that it is known to have.
void ApiPlayer::look_at_runs() {
  std::map<int64_t, std::string> listed;
  const boost::json::value list = rows("/v1/runs");
  for (const Json& row : list.as_array()) {
    listed[row.at("id").as_int64()] = row.at("state").as_string().c_str();
  }
  for (ApiRun& run : model_.runs) {
    if (!run.registered()) continue;
    const auto found = listed.find(run.id);
    if (found == listed.end()) broken("every run is listed", fmt::format("run-{} is not", run.id));
    if (!run.life_is_known && (found->second == run.life || found->second == "live")) {
      run.life = found->second;
      run.life_is_known = true;
    }
    if (found->second != run.life) {
      broken("a run's state is what was acknowledged",
             fmt::format("run-{} is {} and was {}", run.id, found->second, run.life));
    }
    listed.erase(found);
  }
  if (!listed.empty()) {
    broken("no run is listed that nobody registered",
           fmt::format("run-{} is", listed.begin()->first));
  }
}

void ApiPlayer::look_closely() {
  const auto ready = [&] { return ask("reader", "GET", "/readyz").status == 200; };
  if (!test::eventually(ready, std::chrono::seconds(10))) {
    broken("gnomond is ready", lines_.back());
  }
  look_at_runs();
  for (ApiRun& run : model_.runs) {
    if (run.registered()) look_closely(run);
  }
}

// What was acknowledged is there, and nothing else.
void ApiPlayer::look_closely(ApiRun& run) {
  must(200, "reader", "GET", run.path());
  const auto compare = [&](const std::string& what, const auto& known, const auto& key_of) {
    const Json list = rows(run.path() + "/" + what);
    std::set<StepKey> found;
    for (const Json& row : list.as_array()) found.insert(key_of(row));
    std::set<StepKey> expected;
    for (const auto& [key, report] : known) expected.insert(key);
    for (const StepKey& key : expected) {
      if (found.contains(key)) continue;
      broken("what was acknowledged is on record",
             fmt::format("of run-{} the {} have no attempt {} step {}", run.id, what, key.first,
                         key.second));
    }
    for (const StepKey& key : found) {
      if (expected.contains(key)) continue;
      broken("what was refused is not on record",
             fmt::format("of run-{} the {} have attempt {} step {}, which was never acknowledged",
                         run.id, what, key.first, key.second));
    }
  };
  const auto place = [](const Json& row) {
    return StepKey{row.at("attempt").as_int64(), row.at("step").as_int64()};
  };
  compare("steps", run.steps, place);
  compare("checkpoints", run.checkpoints, place);
  const auto texts = [&](const std::string& what, const char* member) {
    std::set<std::string> found;
    const Json list = rows(run.path() + "/" + what);
    for (const Json& row : list.as_array()) found.insert(row.at(member).as_string().c_str());
    return found;
  };
  for (const auto& [what, member, known] : {std::tuple("notices", "text", &run.notices),
                                            std::tuple("overrides", "reason", &run.overrides)}) {
    const std::set<std::string> found = texts(what, member);
    for (const std::string& text : *known) {
      if (found.contains(text)) continue;
      broken("what was acknowledged is on record",
             fmt::format("of run-{} the {} have no \"{}\"", run.id, what, text));
    }
  }
}

// While no daemon runs. A run whose policy was replaced was decided under more than one.
void ApiPlayer::check_replays() {
  for (const ApiRun& run : model_.runs) {
    if (!run.registered() || run.policy_changed) continue;
    RunRecord record;
    record.scenario = run.scenario;
    record.id = run.id;
    Findings findings;
    check_core(daemon_->ledger().string(), record, findings);
    const std::vector<std::string> all = std::move(findings).all();
    if (!all.empty()) broken("the decision state is what the events lead to", all.front());
    ++counts_["runs decided again"];
  }
}

void ApiPlayer::finish() {
  lines_.push_back("SIGTERM, to end");
  look_closely();
  if (const int status = daemon_->stop(); status != 0) {
    broken("SIGTERM ends gnomond with 0", fmt::format("it ended with {}", status));
  }
  check_replays();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{GNOMON, "ledger", "check"},
        std::vector<std::string>{GNOMON, "audit", "verify"}}) {
    std::vector<std::string> with_ledger = command;
    with_ledger.insert(with_ledger.end(), {"--ledger", daemon_->ledger().string()});
    const test::EndedProcess ended = test::run_to_end(with_ledger);
    if (ended.status != 0) {
      broken("the ledger passes its checks",
             fmt::format("gnomon {} {} ended with {}: {}", command[1], command[2], ended.status,
                         ended.output));
    }
  }
}

}  // namespace gnomon::robustness
