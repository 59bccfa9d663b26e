#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "cli/json_output.h"
#include "cli/paths.h"
#include "cli/table.h"
#include "lab/commands/commands.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/engine.h"

namespace gnomon::cli {
namespace {

struct PlanOptions {
  std::string file;
  std::string checkpoint;
  int layers = 0;
  bool json = false;
};

ModelConfig model_of(const PlanOptions& options) {
  if (!options.checkpoint.empty()) {
    require_checkpoint("--checkpoint", options.checkpoint);
    return read_engine_config(options.checkpoint).model;
  }
  ModelConfig model;
  model.layers = options.layers;
  return model;
}

std::string gemm_text(const SitePrecision& precision, Gemm gemm) {
  if (!precision.uses_fp8(gemm)) return "bf16";
  const GemmPrecision& it = precision[gemm];
  return std::string(format_name(gemm == Gemm::kFprop ? it.forward_format : it.gradient_format));
}

void check_plan(const PlanOptions& options) {
  PrecisionPlan plan = PrecisionPlan::load(options.file);
  ModelConfig model = model_of(options);
  std::vector<std::string> sites = model.sites();
  plan.check_sites(sites, model.layers, options.file);
  Table table({"site", "fprop", "dgrad", "wgrad", "recipe"});
  boost::json::array rows;
  for (const std::string& site : sites) {
    SitePrecision precision = plan.resolve(site, model.layers);
    std::string recipe = precision.any_fp8() ? precision.recipes() : "-";
    boost::json::object row = {{"site", site}, {"recipe", recipe}};
    std::vector<std::string> cells = {site};
    for (Gemm gemm : kGemms) {
      cells.push_back(gemm_text(precision, gemm));
      row[gemm_name(gemm)] = cells.back();
    }
    cells.push_back(recipe);
    table.add(std::move(cells));
    rows.push_back(std::move(row));
  }
  const RunPrecision run = plan.of_run();
  boost::json::object of_run;
  std::string low;
  for (const RunChoice& choice : run_choices()) {
    of_run[choice.key] = run.*choice.of_run;
    if (choice.is_low(run)) low += fmt::format("{} = {}\n", choice.key, run.*choice.of_run);
  }
  if (options.json) {
    fmt::print("{}", pretty_json(boost::json::object{
                         {"version", plan.version}, {"run", of_run}, {"sites", rows}}));
  } else {
    fmt::print("{}: accepted (version {})\n{}{}", options.file, plan.version, low, table.text());
  }
}

}  // namespace

void add_plan_commands(Command& app, Context&) {
  Command* plan = app.add_subcommand(
      "plan", "Is FP8 worth it for a run to come; and precision plans: which GEMM in which format");
  plan->require_subcommand(0, 1);
  add_run_planning_options(*plan);
  auto options = std::make_shared<PlanOptions>();
  Command* check =
      plan->add_subcommand("check", "Says whether a plan fits a model, and what each site gets");
  check->add_option("FILE", options->file, "Plan in TOML")->required();
  auto* model = check->add_option_group("model");
  model->add_option("--checkpoint", options->checkpoint, "The model is this checkpoint's");
  model->add_option("--layers", options->layers, "The model is a Llama with this many layers")
      ->check(in_range(1, 10000));
  model->require_option(1);
  check->add_flag("--json", options->json, "Print JSON");
  check->footer("Example:\n  gnomon plan check pinned.toml --layers 8");
  check->callback([options, plan] {
    refuse_options_of_a_run(*plan);
    check_plan(*options);
  });
}

}  // namespace gnomon::cli
