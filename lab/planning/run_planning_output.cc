// The answer of `gnomon plan`, for people and for programs.
#include <fmt/format.h>

#include "cli/json_output.h"
#include "cli/table.h"
#include "lab/planning/run_planning.h"

namespace gnomon::cli {
namespace {

namespace json = boost::json;

constexpr size_t kSensitivitiesShown = 5;

std::string way_in_words(const std::string& name) {
  return name == "spare" ? "spare GPUs" : "training GPUs";
}

json::object to_json(const decide::StepCost& cost) {
  return {{"training", 1.0},         {"verification", cost.verification},
          {"spare", cost.spare},     {"rolled_back", cost.lost},
          {"bf16_steps", cost.bf16}, {"restarts", cost.restart},
          {"total", cost.total()}};
}

json::object to_json(const RunWay& way) {
  return {{"verified_on", way.name},
          {"every", way.every},
          {"net_speedup", way.net},
          {"net_speedup_low", way.net_low},
          {"net_speedup_high", way.net_high},
          {"break_even_hazard", way.break_even_hazard},
          {"chance_of_loss", json_optional(way.chance_of_loss)},
          {"cost_of_a_step", to_json(way.cost)},
          {"steps", json_optional(way.steps)},
          {"gpu_hours", json_optional(way.gpu_hours)},
          {"money", json_optional(way.money)},
          {"days", json_optional(way.days)},
          {"faults", json_optional(way.faults)},
          {"false_alarms", json_optional(way.false_alarms)}};
}

json::object inputs_json(const RunQuestion& question) {
  const decide::RunModel& model = question.model;
  return {{"speedup", model.speedup},
          {"step_seconds", question.step_seconds},
          {"gpus", question.gpus},
          {"spare_gpus", question.spare_gpus},
          {"hazard", question.hazard},
          {"hazard_low", question.hazard_low},
          {"hazard_high", question.hazard_high},
          {"window_steps", model.window_steps},
          {"switch_steps", model.switch_steps},
          {"delay_windows", model.delay_windows},
          {"hold_steps", model.hold_steps},
          {"restart_steps", model.restart_steps},
          {"windows_between_false_alarms", json_number(model.windows_between_false_alarms)},
          {"spare_price", model.spare_price},
          {"checkpoint_every", question.checkpoint_every},
          {"loss_gap_percent", question.loss_gap_percent},
          {"loss_exponent", question.loss_exponent},
          {"steps", json_optional(question.steps)},
          {"budget_gpu_hours", json_optional(question.budget_gpu_hours)},
          {"gpu_hour_price", json_optional(question.gpu_hour_price)},
          {"currency", question.currency}};
}

std::string count(double value) {
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.3g}", value);
}

std::string optional_count(const std::optional<double>& value) {
  return value ? count(*value) : "";
}

// One row for each way and one for BF16; what was not asked for has no column.
std::string ways_table(const RunQuestion& question, const RunPlan& plan) {
  std::vector<std::string> headings = {"verified on", ">every", ">net speed-up", ">90% range",
                                       ">pays up to"};
  const bool totals = plan.bf16_steps.has_value(), money = plan.bf16_money.has_value();
  if (totals) {
    for (const char* heading : {">steps", ">GPU-hours", ">days"}) headings.push_back(heading);
    if (money)
      headings.push_back(
          fmt::format(">{}", question.currency.empty() ? "money" : question.currency));
    for (const char* heading : {">faults", ">false alarms"}) headings.push_back(heading);
  }
  Table table(headings);
  for (const RunWay& way : plan.ways) {
    std::vector<std::string> cells = {
        way_in_words(way.name), std::to_string(way.every), fmt::format("{:.3f}", way.net),
        fmt::format("{:.3f} to {:.3f}", way.net_low, way.net_high),
        way.break_even_hazard > 0 ? decide::hazard_in_words(way.break_even_hazard) : "never"};
    if (totals) {
      for (const auto& value : {way.steps, way.gpu_hours, way.days}) {
        cells.push_back(optional_count(value));
      }
      if (money) cells.push_back(optional_count(way.money));
      cells.push_back(optional_count(way.faults));
      cells.push_back(optional_count(way.false_alarms));
    }
    table.add(std::move(cells));
  }
  if (totals) {
    std::vector<std::string> cells = {"(BF16)", "", "1.000", "", ""};
    for (const auto& value : {plan.bf16_steps, plan.bf16_gpu_hours, plan.bf16_days}) {
      cells.push_back(optional_count(value));
    }
    if (money) cells.push_back(optional_count(plan.bf16_money));
    cells.insert(cells.end(), {"", ""});
    table.add(std::move(cells));
  }
  return table.text();
}

std::string cost_in_words(const RunWay& way) {
  const decide::StepCost& cost = way.cost;
  const double total = cost.total();
  return fmt::format(
      "The time paid: {:.1f}% training, {:.1f}% verification, {:.1f}% spare GPUs, {:.1f}% steps "
      "that are rolled back, {:.1f}% BF16's longer steps, {:.1f}% restarts.\n",
      100 / total, 100 * cost.verification / total, 100 * cost.spare / total,
      100 * cost.lost / total, 100 * cost.bf16 / total, 100 * cost.restart / total);
}

std::string hazards_table(const RunPlan& plan) {
  std::vector<std::string> headings = {">faults per step"};
  for (const RunWay& way : plan.ways) {
    headings.push_back(fmt::format(">{}: every", way_in_words(way.name)));
    headings.push_back(">net");
  }
  Table table(headings);
  for (const HazardRow& row : plan.table) {
    std::vector<std::string> cells = {decide::hazard_in_words(row.hazard)};
    for (size_t way = 0; way < row.net.size(); ++way) {
      cells.push_back(std::to_string(row.every[way]));
      cells.push_back(fmt::format("{:.3f}", row.net[way]));
    }
    table.add(std::move(cells));
  }
  return table.text();
}

std::string sensitivities_table(const RunPlan& plan) {
  Table table({"what matters most", "less", ">net", "more", ">net "});
  for (size_t i = 0; i < std::min(kSensitivitiesShown, plan.sensitivities.size()); ++i) {
    const Sensitivity& one = plan.sensitivities[i];
    table.add({one.input, one.less, fmt::format("{:.3f}", one.net_less), one.more,
               fmt::format("{:.3f}", one.net_more)});
  }
  return table.text();
}

json::object to_json(const RunPlan::AtBudget& budget) {
  json::array promises;
  for (const decide::Promise& promise : budget.promises) {
    promises.push_back(
        {{"gap_percent", promise.gap_percent}, {"within_steps", promise.within_steps.value()}});
  }
  return {{"budget_percent", budget.budget_percent},
          {"every", budget.every},
          {"net_speedup", budget.net},
          {"promises", std::move(promises)}};
}

std::string budget_in_words(const RunPlan::AtBudget& budget) {
  std::string text = fmt::format(
      "\nA budget of {}% of the compute for all replays{} is a window every {} steps and does "
      "{:.3f} times the work of BF16. A lasting fault is caught, 19 times of 20, within\n",
      budget.budget_percent,
      budget.budget_percent == decide::Policy().verification.budget_percent ? ", the default," : "",
      budget.every, budget.net);
  for (const decide::Promise& promise : budget.promises) {
    text += fmt::format("  {} steps, if it costs {:.2g}% of the loss in a window\n",
                        promise.within_steps.value(), promise.gap_percent);
  }
  return text;
}

}  // namespace

json::object to_json(const RunQuestion& question, const RunPlan& plan) {
  json::array ways, table, sensitivities;
  for (const RunWay& way : plan.ways) ways.push_back(to_json(way));
  for (const HazardRow& row : plan.table) {
    json::object line = {{"hazard", row.hazard}};
    for (size_t way = 0; way < row.net.size(); ++way) {
      line[plan.ways[way].name] =
          json::object{{"every", row.every[way]}, {"net_speedup", row.net[way]}};
    }
    table.push_back(std::move(line));
  }
  for (const Sensitivity& one : plan.sensitivities) {
    sensitivities.push_back({{"input", one.input},
                             {"less", one.less},
                             {"net_speedup_less", one.net_less},
                             {"more", one.more},
                             {"net_speedup_more", one.net_more}});
  }
  const RunWay& best = plan.ways[plan.best];
  return {{"worth_it", plan.worth_it},
          {"advice", plan.advice},
          {"verified_on", best.name},
          {"net_speedup", best.net},
          {"every", best.every},
          {"policy", plan.policy},
          {"at_budget", to_json(plan.at_budget)},
          {"ways", ways},
          {"bf16",
           {{"steps", json_optional(plan.bf16_steps)},
            {"gpu_hours", json_optional(plan.bf16_gpu_hours)},
            {"money", json_optional(plan.bf16_money)},
            {"days", json_optional(plan.bf16_days)}}},
          {"best_spare_gpus", plan.best_spare_gpus},
          {"hazards", table},
          {"sensitivities", sensitivities},
          {"inputs", inputs_json(question)}};
}

std::string in_words(const RunQuestion& question, const RunPlan& plan) {
  std::string text = fmt::format("{}\n\n{}{}\n{}\n{}", plan.advice, ways_table(question, plan),
                                 cost_in_words(plan.ways[plan.best]), hazards_table(plan),
                                 sensitivities_table(plan));
  text += budget_in_words(plan.at_budget);
  if (plan.worth_it)
    text += fmt::format("\nFor the policy, in place of its budget:\n\n{}", plan.policy);
  return text;
}

}  // namespace gnomon::cli
