#include "trainer/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/files.h"
#include "protocol/toml_reader.h"

namespace gnomon {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::string write_attempt(const AttemptRecord& record) {
  const AttemptStart& start = record.start;
  std::string text = fmt::format(
      "\n[[attempt]]\nnumber = {}\nbase_step = {}\ncause = {}\nplan_version = {}\ntime = "
      "{:.6f}\nbase_attempt = {}\n"
      "base_checkpoint = {}\nhost = {}\n",
      start.attempt, start.base_step, toml_quoted(start.cause), start.plan_version, start.time,
      record.base_attempt, toml_quoted(record.base_checkpoint), toml_quoted(start.host));
  if (start.fingerprint) {
    const Fingerprint& print = *start.fingerprint;
    text += fmt::format(
        "fingerprint = {{ device = {}, backend = {}, libraries = {}, build = {}, world_size = {}, "
        "threads = {} }}\n",
        toml_quoted(print.device), toml_quoted(print.backend), toml_quoted(print.libraries),
        toml_quoted(print.build), print.world_size, print.threads);
  }
  return text;
}

Fingerprint read_fingerprint(TomlTable table) {
  constexpr int kIntMax = std::numeric_limits<int>::max();
  Fingerprint print;
  print.device = table.text("device", "");
  print.backend = table.text("backend", "");
  print.libraries = table.text("libraries", "");
  print.build = table.text("build", "");
  print.world_size = static_cast<int>(table.integer("world_size", 1, 1, kIntMax));
  print.threads = static_cast<int>(table.integer("threads", 1, 0, kIntMax));
  table.refuse_unknown_keys();
  return print;
}

AttemptRecord read_attempt(TomlTable& table) {
  AttemptRecord record;
  record.start.attempt = table.integer("number", 0, 1, kMax);
  record.start.base_step = table.integer("base_step", 0, 0, kMax);
  record.start.cause = AttemptCause::on_record(table.text("cause", ""));
  record.start.plan_version = table.integer("plan_version", 0, -kMax, kMax);
  record.start.time = table.number("time", 0, 0, 1e12);
  record.base_attempt = table.integer("base_attempt", 0, 0, kMax);
  record.base_checkpoint = table.text("base_checkpoint", "");
  record.start.host = table.text("host", "");
  if (table.has("fingerprint")) {
    record.start.fingerprint = read_fingerprint(table.table("fingerprint"));
  }
  table.refuse_unknown_keys();
  return record;
}

}  // namespace

std::optional<RunState> RunState::load(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  TomlTable table = TomlTable::parse(read_file(file), file.string());
  RunState state;
  state.last_directive = table.integer("last_directive", 0, 0, kMax);
  TomlTable ack = table.table("last_ack");
  state.last_ack.state = AckState::on_record(ack.text("state", ""));
  state.last_ack.attempt = ack.integer("attempt", 0, 0, kMax);
  state.last_ack.step = ack.integer("step", 0, 0, kMax);
  state.last_ack.reason = ack.text("reason", "");
  state.last_ack.time = ack.number("time", 0, 0, 1e12);
  ack.refuse_unknown_keys();
  state.newest_plan_version = table.integer("newest_plan_version", 0, -1, kMax);
  state.plan = table.text("plan", "");
  state.paused = table.boolean("paused", false);
  state.finished = table.text("finished", "");
  state.base_plan = table.text("base_plan", "");
  state.checkpointed = table.boolean("checkpointed", false);
  state.on_loss = table.text("on_loss", "");
  state.grace_seconds = table.number("grace_seconds", 0, 0, 1e12);
  for (TomlTable& attempt : table.tables("attempt"))
    state.attempts.push_back(read_attempt(attempt));
  for (const AttemptRecord& attempt : state.attempts) {
    state.newest_plan_version = std::max(state.newest_plan_version, attempt.start.plan_version);
  }
  table.refuse_unknown_keys();
  return state;
}

void RunState::save(const std::filesystem::path& file) const {
  std::string text = "# Kept by gnomon-trainer; do not edit while it runs.\n";
  text += fmt::format(
      "last_directive = {}\nnewest_plan_version = {}\nplan = {}\nbase_plan = {}\npaused = {}\n"
      "finished = {}\ncheckpointed = {}\non_loss = {}\ngrace_seconds = {}\n",
      last_directive, newest_plan_version, toml_quoted(plan), toml_quoted(base_plan), paused,
      toml_quoted(finished), checkpointed, toml_quoted(on_loss), grace_seconds);
  text +=
      fmt::format("\n[last_ack]\nstate = {}\nattempt = {}\nstep = {}\nreason = {}\ntime = {:.6f}\n",
                  toml_quoted(last_ack.state), last_ack.attempt, last_ack.step,
                  toml_quoted(last_ack.reason), last_ack.time);
  for (const AttemptRecord& attempt : attempts) text += write_attempt(attempt);
  write_file_atomically(file, text);
}

bool RunState::had_checkpoint() const {
  return checkpointed || std::ranges::any_of(attempts, [](const AttemptRecord& attempt) {
           return !attempt.base_checkpoint.empty();
         });
}

std::optional<CheckpointInfo> find_resume_point(const RunState& state, const CheckpointStore& store,
                                                std::vector<std::string>& skipped) {
  const std::vector<CheckpointInfo> all = store.list();
  int64_t limit = kMax;
  for (int64_t attempt = state.attempt(); attempt > 0;) {
    for (auto info = all.rbegin(); info != all.rend(); ++info) {
      if (info->attempt != attempt || info->step > limit) continue;
      try {
        return verify_checkpoint(info->path);
      } catch (const CheckpointError& error) {
        skipped.push_back(error.what());
      }
    }
    const auto record = std::find_if(
        state.attempts.begin(), state.attempts.end(),
        [attempt](const AttemptRecord& each) { return each.start.attempt == attempt; });
    if (record == state.attempts.end()) break;
    limit = std::min(limit, record->start.base_step);
    attempt = std::min(record->base_attempt, attempt - 1);
  }
  return std::nullopt;
}

}  // namespace gnomon
