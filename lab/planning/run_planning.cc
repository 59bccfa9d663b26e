#include "lab/planning/run_planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/errors.h"
#include "controller/decide/cadence.h"
#include "controller/decide/window_lengths.h"

namespace gnomon::cli {
namespace {

using decide::RunModel;

const std::vector<double> kTableHazards = {1e-4,      1 / 20e3,  1 / 50e3, 1e-5,
                                           1 / 200e3, 1 / 500e3, 1e-6};

void require(bool accepted, const char* name, double value, const char* expected) {
  if (!accepted) throw ConfigError("", 0, name, fmt::format("{}", value), expected);
}

// Narrower than what the model takes, so that every input can be halved and doubled.
void check(const RunQuestion& question) {
  const RunModel& model = question.model;
  decide::check_model(model);
  require(model.speedup >= 0.1 && model.speedup <= 50, "--speedup", model.speedup,
          "the time of a BF16 step over that of an FP8 step, from 0.1 to 50");
  for (double steps :
       {model.window_steps, model.switch_steps, model.hold_steps, model.restart_steps}) {
    require(steps <= 1e8, "a time in steps", steps, "at most 1e8 steps");
  }
  require(model.delay_windows <= 1e5, "--detector-delay", model.delay_windows, "at most 1e5");
  require(question.step_seconds > 0 && question.step_seconds <= 1e6, "--step-seconds",
          question.step_seconds, "seconds above 0, at most 1e6");
  require(question.gpus >= 1 && question.gpus <= 10'000'000, "--gpus",
          static_cast<double>(question.gpus), "a number from 1 to 10 million");
  require(question.spare_gpus >= 0 && question.spare_gpus <= 10'000'000, "--spare-gpus",
          static_cast<double>(question.spare_gpus), "a number from 0 to 10 million");
  require(question.spare_gpus <= 100 * question.gpus &&
              (question.spare_gpus == 0 || question.gpus <= 10'000 * question.spare_gpus),
          "--spare-gpus", static_cast<double>(question.spare_gpus),
          "none, or from a ten-thousandth to a hundred times the GPUs that train");
  require(question.checkpoint_every >= 1 && question.checkpoint_every <= 100'000'000,
          "--checkpoint-every", static_cast<double>(question.checkpoint_every),
          "a number of steps from 1 to 1e8");
  require(question.budget_percent >= 0.1 && question.budget_percent <= 100, "--budget-percent",
          question.budget_percent, "per cent of the compute of training, from 0.1 to 100");
  if (question.gpu_hour_price) {
    require(*question.gpu_hour_price > 0 && *question.gpu_hour_price <= 1e6, "--gpu-hour-price",
            *question.gpu_hour_price, "a price above 0, at most 1e6");
  }
}

// A window is as long as it takes to get from one checkpoint to another.
double whole_window(const RunQuestion& question) {
  const double unit = static_cast<double>(question.checkpoint_every);
  return unit * std::ceil(question.model.window_steps / unit);
}

// The best cadence a policy can have.
int64_t best_cadence(const RunQuestion& question, const RunModel& model, double hazard) {
  decide::CadenceLimits limits;
  // A window in the whole run at least.
  limits.every_max = static_cast<int64_t>(std::clamp(question.steps.value_or(1e6), 1.0, 1e9));
  limits.checkpoint_every = question.checkpoint_every;
  return decide::choose_cadence(model, hazard, 0, limits).every;
}

double gap_factor(const RunQuestion& question) {
  return decide::compute_factor(question.loss_gap_percent, question.loss_exponent);
}

double net_at(const RunQuestion& question, const RunModel& model, int64_t every, double hazard) {
  return decide::net_speedup(model, static_cast<double>(every), hazard) / gap_factor(question);
}

double best_net(const RunQuestion& question, const RunModel& model, double hazard) {
  return net_at(question, model, best_cadence(question, model, hazard), hazard);
}

double gpu_hours(const RunQuestion& question, double steps, double step_cost) {
  return steps * step_cost * question.step_seconds * static_cast<double>(question.gpus) / 3600;
}

// What the steps or the budget come to when a useful step costs so many FP8 steps.
struct Totals {
  std::optional<double> steps, gpu_hours, money, days;
};

Totals totals(const RunQuestion& question, double step_cost, double devices) {
  Totals made;
  if (question.steps) {
    made.steps = *question.steps;
  } else if (question.budget_gpu_hours) {
    made.steps = *question.budget_gpu_hours / gpu_hours(question, 1, step_cost);
  } else {
    return made;
  }
  made.gpu_hours = gpu_hours(question, *made.steps, step_cost);
  if (question.gpu_hour_price) made.money = *made.gpu_hours * *question.gpu_hour_price;
  made.days = *made.steps * step_cost / devices * question.step_seconds / 86400;
  return made;
}

RunWay make_way(const RunQuestion& question, const std::string& name, const RunModel& model) {
  RunWay way;
  way.name = name;
  way.model = model;
  way.every = best_cadence(question, model, question.hazard);
  way.cost = decide::step_cost(model, static_cast<double>(way.every), question.hazard);
  way.net = net_at(question, model, way.every, question.hazard);
  way.net_low = net_at(question, model, way.every, question.hazard_high);
  way.net_high = net_at(question, model, way.every, question.hazard_low);
  way.break_even_hazard = decide::break_even_hazard(model, gap_factor(question));
  if (question.belief) {
    way.chance_of_loss = decide::hazard_above(*question.belief, way.break_even_hazard);
  }
  const double paid_share = 1 + model.spare_share * model.spare_price;
  const Totals sums = totals(question, way.cost.total() * gap_factor(question), paid_share);
  way.steps = sums.steps;
  way.gpu_hours = sums.gpu_hours;
  way.money = sums.money;
  way.days = sums.days;
  if (way.steps) {
    way.faults = *way.steps * question.hazard;
    way.false_alarms =
        *way.steps / (static_cast<double>(way.every) * model.windows_between_false_alarms);
  }
  return way;
}

struct Input {
  const char* name;
  const char* unit;
  double value;
  double less, more;
  std::function<void(RunModel&, double& hazard, double value)> set;
};

std::vector<Input> inputs(const RunQuestion& question, const RunModel& model) {
  const auto halved = [](const char* name, const char* unit, double value, double least,
                         auto set) -> Input {
    return {name, unit, value, std::max(least, value / 2), value * 2, set};
  };
  const auto field = [](double RunModel::*where) {
    return [where](RunModel& m, double&, double value) { m.*where = value; };
  };
  std::vector<Input> list = {
      {"speed-up of a step", "", model.speedup, model.speedup - 0.05, model.speedup + 0.05,
       field(&RunModel::speedup)},
      halved("hazard", "", question.hazard, 0,
             [](RunModel&, double& hazard, double value) { hazard = std::min(1.0, value); }),
      halved("window", "steps", model.window_steps, 1, field(&RunModel::window_steps)),
      halved("switching", "steps", model.switch_steps, 0, field(&RunModel::switch_steps)),
      halved("detector's delay", "windows", model.delay_windows, 1,
             field(&RunModel::delay_windows)),
      halved("hold", "steps", model.hold_steps, 0, field(&RunModel::hold_steps)),
      halved("restart", "steps", model.restart_steps, 0, field(&RunModel::restart_steps)),
      halved("time between false alarms", "windows", model.windows_between_false_alarms, 2,
             field(&RunModel::windows_between_false_alarms)),
  };
  if (model.spare_share > 0) {
    list.push_back(halved("spare GPUs", "", model.spare_share * static_cast<double>(question.gpus),
                          0, [gpus = question.gpus](RunModel& m, double&, double value) {
                            m.spare_share = value / static_cast<double>(gpus);
                          }));
  }
  return list;
}

std::string change_in_words(const Input& input, double to) {
  const auto number = [&](double value) {
    if (std::string_view(input.name) == "hazard") return decide::hazard_in_words(value);
    return fmt::format("{:.3g}", value);
  };
  return fmt::format("{} -> {}{}{}", number(input.value), number(to), *input.unit != 0 ? " " : "",
                     input.unit);
}

std::vector<Sensitivity> sensitivities(const RunQuestion& question, const RunModel& model) {
  std::vector<Sensitivity> list;
  for (const Input& input : inputs(question, model)) {
    const auto net = [&](double value) {
      RunModel changed = model;
      double hazard = question.hazard;
      input.set(changed, hazard, value);
      return best_net(question, changed, hazard);
    };
    list.push_back({input.name, change_in_words(input, input.less),
                    change_in_words(input, input.more), net(input.less), net(input.more)});
  }
  std::stable_sort(list.begin(), list.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return a.spread() > b.spread();
  });
  return list;
}

std::vector<HazardRow> hazard_table(const RunQuestion& question, const std::vector<RunWay>& ways) {
  std::vector<HazardRow> table;
  for (double hazard : kTableHazards) {
    HazardRow row{hazard, {}, {}};
    for (const RunWay& way : ways) {
      row.every.push_back(best_cadence(question, way.model, hazard));
      row.net.push_back(net_at(question, way.model, row.every.back(), hazard));
    }
    table.push_back(std::move(row));
  }
  return table;
}

std::string advise(const RunQuestion& question, const RunPlan& plan) {
  const RunWay& way = plan.ways[plan.best];
  const std::string where =
      way.name == "spare" ? "on the spare GPUs" : "on the training GPUs themselves";
  std::string text;
  if (plan.worth_it) {
    text = fmt::format(
        "FP8 is worth it: verified {}, it is expected to do {:.2f} times the work of BF16 for the "
        "same GPU-hours (a step alone is {:.2f} times as fast). Verify {:.0f} steps every {}.",
        where, way.net, way.model.speedup, way.model.window_steps, way.every);
  } else {
    text = fmt::format(
        "FP8 is not worth it here: verified {}, it is expected to do {:.2f} times the work of BF16 "
        "for the same GPU-hours. Train in BF16.",
        where, way.net);
  }
  if (way.break_even_hazard > 0) {
    text += fmt::format(" It pays as long as faults are rarer than one in {:.0f} steps",
                        1 / way.break_even_hazard);
    if (way.chance_of_loss) {
      text += fmt::format(" (chance that they are not: {:.2g}%)", 100 * *way.chance_of_loss);
    }
    text += ".";
  } else {
    text += " No rate of faults is low enough.";
  }
  if (question.spare_gpus == 0 && plan.best_spare_gpus >= 1) {
    RunModel spare = way.model;
    spare.spare_share = std::round(plan.best_spare_gpus) / static_cast<double>(question.gpus);
    text +=
        fmt::format(" With {:.0f} more GPU(s) that only verify it would be {:.2f}.",
                    std::round(plan.best_spare_gpus), best_net(question, spare, question.hazard));
  }
  return text;
}

std::string policy_snippet(const RunWay& way) {
  return fmt::format("[window]\nevery = {}\nsteps = {:.0f}\n", way.every, way.model.window_steps);
}

// What a policy of that budget does in this run.
RunPlan::AtBudget plan_at_budget(const RunQuestion& question, const RunModel& model) {
  decide::Policy policy;
  policy.verification.budget_percent = question.budget_percent;
  policy.window.steps = static_cast<int64_t>(model.window_steps);
  policy.economics.speedup = model.speedup;
  policy.economics.switch_steps = model.switch_steps;
  const decide::WindowLengths lengths = decide::asked_lengths(policy, question.checkpoint_every);
  decide::StepCost cost =
      decide::step_cost(model, static_cast<double>(lengths.every), question.hazard);
  // Forks, checks and audits take what windows leave.
  cost.verification = std::max(cost.verification, policy.verification.budget_percent / 100);
  return {policy.verification.budget_percent, lengths.every,
          model.speedup / cost.total() / gap_factor(question),
          decide::promises(policy, lengths, policy.detector.prior_scale_percent)};
}

}  // namespace

double Sensitivity::spread() const { return std::abs(net_more - net_less); }

RunPlan plan_run(const RunQuestion& question) {
  check(question);
  RunPlan plan;
  RunModel model = question.model;
  model.window_steps = whole_window(question);
  model.spare_share = 0;
  plan.ways.push_back(make_way(question, "trainer", model));
  plan.at_budget = plan_at_budget(question, model);
  if (question.spare_gpus > 0) {
    model.spare_share =
        static_cast<double>(question.spare_gpus) / static_cast<double>(question.gpus);
    plan.ways.push_back(make_way(question, "spare", model));
    if (plan.ways[1].net > plan.ways[0].net) plan.best = 1;
  }
  const RunWay& best = plan.ways[plan.best];
  plan.worth_it = best.net > 1;
  const Totals bf16 = totals(question, question.model.speedup, 1);
  plan.bf16_steps = bf16.steps;
  plan.bf16_gpu_hours = bf16.gpu_hours;
  plan.bf16_money = bf16.money;
  plan.bf16_days = bf16.days;
  plan.table = hazard_table(question, plan.ways);
  plan.sensitivities = sensitivities(question, best.model);
  plan.best_spare_gpus =
      decide::best_spare_share(best.model, question.hazard) * static_cast<double>(question.gpus);
  plan.advice = advise(question, plan);
  plan.policy = policy_snippet(best);
  return plan;
}

}  // namespace gnomon::cli
