#include "trainer/engine/statistics_collector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "numerics/scales.h"
#include "protocol/site_glob.h"
#include "storage/safetensors.h"
#include "trainer/engine/parameters.h"

namespace gnomon {
namespace {

const std::vector<std::string>& tensor_names() {
  static const std::vector<std::string> kNames = {"input", "weight", "gradient", "output",
                                                  "weight_gradient"};
  return kNames;
}

bool matches(const std::vector<std::string>& globs, const std::string& site, int layers) {
  return std::ranges::any_of(
      globs, [&](const std::string& glob) { return site_matches(glob, site, layers); });
}

MatrixView dense(std::span<const bf16> content, int64_t columns) {
  return {content.data(), std::ssize(content) / columns, columns};
}

// Whose output multiplies that of the next site.
bool is_gate(const std::string& site) { return site.ends_with(".gate_proj"); }

void set(StatisticsRow& row, StatisticsNumber number, double value) {
  if (!std::isnan(value)) row.numbers[static_cast<size_t>(number)] = value;
}

}  // namespace

GemmPrecision what_if_precision(const std::string& name, const std::string& file,
                                const std::string& key) {
  const size_t colon = name.find(':');
  GemmPrecision precision;
  try {
    const Recipe recipe = recipe_from_name(name.substr(0, colon));
    precision.choose(recipe);
    if (colon != std::string::npos) {
      const std::string formats = name.substr(colon + 1);
      const size_t slash = formats.find('/');
      precision.forward_format = format_from_name(formats.substr(0, slash));
      precision.gradient_format = slash == std::string::npos
                                      ? precision.forward_format
                                      : format_from_name(formats.substr(slash + 1));
    }
    for (const Format format : {precision.forward_format, precision.gradient_format}) {
      if (format == Format::kFp32) throw Error("nothing is rounded to fp32");
    }
    if (recipe == Recipe::kNone && colon == std::string::npos) {
      throw Error("the recipe none has no format of its own");
    }
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(file, 0, key, name,
                      fmt::format("one of {}, with formats behind it where wanted, as in mx:e2m1 "
                                  "or current:e4m3/e4m3 ({})",
                                  fmt::join(recipe_names(is_ours), ", "), error.what()));
  }
  precision.fp8 = true;
  return precision;
}

void check_statistics(const StatisticsConfig& config, const std::vector<std::string>& sites,
                      int layers, const std::string& file) {
  for (const std::string& glob : config.match) {
    const std::string wrong = glob_error(glob);
    const bool any = wrong.empty() && std::ranges::any_of(sites, [&](const std::string& site) {
                       return site_matches(glob, site, layers);
                     });
    if (!any) {
      throw ConfigError(file, 0, "statistics.match", glob,
                        fmt::format("globs that match GEMM sites, {} to {}{}", sites.front(),
                                    sites.back(), wrong.empty() ? "" : " (here " + wrong + ")"));
    }
  }
  for (const std::string& tensor : config.tensors) {
    if (std::ranges::find(tensor_names(), tensor) == tensor_names().end()) {
      throw ConfigError(file, 0, "statistics.tensors", tensor,
                        fmt::format("{}", fmt::join(tensor_names(), ", ")));
    }
  }
  for (const std::string& name : config.what_if) {
    what_if_precision(name, file, "statistics.what_if");
  }
  const auto chosen = std::ranges::count_if(
      sites, [&](const std::string& site) { return matches(config.match, site, layers); });
  if (chosen > config.sites_max) {
    throw ConfigError(
        file, 0, "statistics.sites_max", std::to_string(config.sites_max),
        fmt::format("at least {}, as many as `match` chooses; or a narrower `match`", chosen));
  }
}

StatisticsCollector::StatisticsCollector(const StatisticsConfig& config,
                                         const std::vector<std::string>& sites, int layers,
                                         const ParameterLayout& layout, BackendBase& backend)
    : tensors_(config.tensors.begin(), config.tensors.end()),
      memory_(backend.memory()),
      source_(backend.statistics()),
      weight_gradient_(memory_) {
  for (const std::string& name : sites) {
    const Parameter* weight = layout.find(name + ".weight");
    // The head of a model with tied embeddings is the embedding.
    if (weight == nullptr) weight = &layout[layout.head()];
    sites_.push_back({name, weight->shape[1], weight->shape[0], weight->offset,
                      matches(config.match, name, layers)});
  }
  for (const std::string& name : config.what_if) {
    what_if_.push_back({name, what_if_precision(name, "statistics", "what_if")});
  }
}

void StatisticsCollector::begin(int64_t n, const std::vector<SitePrecision>& precisions) {
  begin_rows(0, n);
  precisions_ = &precisions;
  rows_.clear();
  measured_.clear();
  dumps_.clear();
  begin_products();
  group_ = 1;
}

StatisticsCollector::Seen& StatisticsCollector::seen(const MatrixView& matrix) {
  for (Seen& it : seen_) {
    if (it.matrix == matrix) return it;
  }
  return seen_.emplace_back(Seen{matrix, TensorProbe(matrix, source_)});
}

const TensorStatistics& StatisticsCollector::Seen::measure() {
  if (!statistics) statistics = probe.measure();
  return *statistics;
}

const QuantizationStatistics& StatisticsCollector::Seen::compare(const Quantizer& quantizer,
                                                                 float given_scale) {
  for (const Answer& it : answers) {
    if (it.quantizer == quantizer && it.given_scale == given_scale) return it.statistics;
  }
  return answers.emplace_back(Answer{quantizer, given_scale, probe.compare(quantizer, given_scale)})
      .statistics;
}

void StatisticsCollector::begin_products() {
  seen_.clear();
  gate_.reset();
}

void StatisticsCollector::begin_rows(int64_t first, int64_t count) {
  n_ = count;
  looks_ = first == 0;
}

bool StatisticsCollector::wanted(int site, const std::string& tensor) const {
  return (sites_[static_cast<size_t>(site)].chosen && tensors_.contains(tensor)) ||
         dumped_.contains({site, tensor});
}

void StatisticsCollector::operand(int site, Gemm gemm, TensorRole role,
                                  std::span<const bf16> content, const Quantizer* quantizer,
                                  float given_scale) {
  if (!looks_) return;
  const Site& first = sites_[static_cast<size_t>(site)];
  if (role == TensorRole::kGradient) {
    const int64_t columns = std::ssize(content) / n_;
    int64_t at = 0;
    group_ = 0;
    for (int i = site; at < columns; ++i, ++group_) {
      const int64_t out = sites_[static_cast<size_t>(i)].out;
      operand_of(i, gemm, role, {content.data() + at, n_, out, columns}, quantizer, given_scale);
      at += out;
    }
    return;
  }
  if (gemm == Gemm::kFprop || group_ == 1) {
    operand_of(site, gemm, role, dense(content, first.in), quantizer, given_scale);
    return;
  }
  // Sites that ran as one: their weights were met in fprop, where this is the first one's alone.
  const int met = role == TensorRole::kInput ? group_ : 1;
  for (int i = site; i < site + met; ++i) {
    operand_of(i, gemm, role, dense(content, first.in), quantizer, given_scale);
  }
}

void StatisticsCollector::output(int site, std::span<const bf16> content, int64_t n) {
  if (!looks_) return;
  const int64_t columns = std::ssize(content) / n;
  int64_t at = 0;
  for (int i = site; at < columns; ++i) {
    const int64_t out = sites_[static_cast<size_t>(i)].out;
    const MatrixView matrix{content.data() + at, n, out, columns};
    at += out;
    if (!wanted(i, "output")) continue;
    add_tensor_row(i, "output", TensorProbe(matrix, source_).measure());
    keep(i, "output", matrix);
  }
}

void StatisticsCollector::weight_gradients(std::span<const float> gradients) {
  for (int site = 0; site < static_cast<int>(sites_.size()); ++site) {
    if (!wanted(site, "weight_gradient")) continue;
    const Site& it = sites_[static_cast<size_t>(site)];
    const std::span<bf16> rounded = weight_gradient_.at_least(it.out * it.in);
    source_.round(gradients.subspan(static_cast<size_t>(it.weight_offset), rounded.size()),
                  rounded);
    const MatrixView matrix = dense(rounded, it.in);
    add_tensor_row(site, "weight_gradient", TensorProbe(matrix, source_).measure());
    keep(site, "weight_gradient", matrix);
  }
}

void StatisticsCollector::operand_of(int site, Gemm gemm, TensorRole role, const MatrixView& matrix,
                                     const Quantizer* quantizer, float given_scale) {
  const std::string tensor(tensor_role_name(role));
  if (role == TensorRole::kWeight && is_gate(sites_[static_cast<size_t>(site)].name)) {
    gate_ = matrix;
  }
  if (!wanted(site, tensor)) return;
  const bool first = !measured_.contains({site, tensor});
  if (!first && quantizer == nullptr && what_if_.empty()) return;
  Seen& tensor_seen = seen(matrix);
  if (first) {
    StatisticsRow* row = add_tensor_row(site, tensor, tensor_seen.measure());
    if (role == TensorRole::kWeight && row != nullptr) add_gate_cosines(site, matrix, *row);
    keep(site, tensor, matrix);
  }
  if (quantizer != nullptr) {
    const Recipe recipe = (*precisions_)[static_cast<size_t>(site)][gemm].recipe;
    add_rounding_row(site, tensor, gemm, std::string(recipe_name(recipe)), true,
                     tensor_seen.compare(*quantizer, given_scale));
    keep_rounded(site, tensor, gemm, matrix, *quantizer, given_scale);
  }
  for (const WhatIf& it : what_if_) {
    if (recipe_row(it.precision.recipe).keeps_wgrad && gemm == Gemm::kWgrad) continue;  // BF16
    const Quantizer other = quantizer_for(it.precision, role, gemm);
    add_rounding_row(
        site, tensor, gemm, it.name, false,
        tensor_seen.compare(other, current_scale(tensor_seen.probe.amax(), other.format)));
  }
}

StatisticsRow StatisticsCollector::row(int site, const std::string& tensor) const {
  StatisticsRow made;
  made.site = sites_[static_cast<size_t>(site)].name;
  made.tensor = TensorName::on_record(tensor);
  return made;
}

std::optional<double> StatisticsCollector::amax_over_window(int site, const std::string& tensor,
                                                            double amax) {
  if (std::isnan(amax)) return std::nullopt;
  std::deque<double>& looks = amaxes_[{site, tensor}];
  std::optional<double> ratio;
  if (!looks.empty() && std::ranges::max(looks) > 0) ratio = amax / std::ranges::max(looks);
  looks.push_back(amax);
  if (looks.size() > kWindowLooks) looks.pop_front();
  return ratio;
}

void StatisticsCollector::add_gate_cosines(int site, const MatrixView& matrix, StatisticsRow& row) {
  const bool gated = site > 0 && is_gate(sites_[static_cast<size_t>(site - 1)].name);
  if (!gated || !gate_ || gate_->rows != matrix.rows || gate_->columns != matrix.columns) return;
  const RowCosines cosines = row_cosines(*gate_, matrix, source_);
  set(row, StatisticsNumber::kGateCosineMean, cosines.mean);
  set(row, StatisticsNumber::kGateCosineMax, cosines.max);
}

StatisticsRow* StatisticsCollector::add_tensor_row(int site, const std::string& tensor,
                                                   const TensorStatistics& s) {
  using enum StatisticsNumber;
  if (!measured_.insert({site, tensor}).second) return nullptr;
  StatisticsRow made = row(site, tensor);
  made.elements = s.elements;
  set(made, kNans, static_cast<double>(s.nans));
  set(made, kInfinities, static_cast<double>(s.infinities));
  set(made, kZeros, static_cast<double>(s.zeros));
  set(made, kMin, s.min);
  set(made, kMax, s.max);
  set(made, kAmax, s.amax);
  set(made, kAmin, s.amin);
  set(made, kMean, s.mean);
  set(made, kStd, s.std);
  set(made, kL1, s.l1);
  set(made, kL2, s.l2);
  set(made, kDynamicRange, s.dynamic_range);
  set(made, kKurtosis, s.kurtosis);
  set(made, kTokenKurtosisMean, s.token_kurtosis_mean);
  set(made, kTokenKurtosisMax, s.token_kurtosis_max);
  made.histogram_lowest = s.histogram.lowest;
  made.histogram_below = s.histogram.below;
  made.histogram = s.histogram.bins;
  made.numbers[static_cast<size_t>(kAmaxOverWindow)] = amax_over_window(site, tensor, s.amax);
  return &rows_.emplace_back(std::move(made));
}

void StatisticsCollector::add_rounding_row(int site, const std::string& tensor, Gemm gemm,
                                           const std::string& recipe, bool in_use,
                                           const QuantizationStatistics& s) {
  using enum StatisticsNumber;
  StatisticsRow made = row(site, tensor);
  made.gemm = GemmOrNone::on_record(gemm_name(gemm));
  made.recipe = recipe;
  made.in_use = in_use;
  made.elements = s.elements;
  set(made, kTiles, static_cast<double>(s.tiles));
  set(made, kUnderflow, s.underflow);
  set(made, kUnderflowPercent, s.underflow_percent);
  set(made, kSaturation, s.saturation);
  set(made, kOverflow, s.overflow);
  set(made, kSubnormal, s.subnormal);
  set(made, kTopCode, s.top_code);
  set(made, kTopCodeTileMax, s.top_code_tile_max);
  set(made, kTilesInTopCode, s.tiles_in_top_code);
  set(made, kMse, s.mse);
  set(made, kRelativeError, s.relative_error);
  set(made, kCosine, s.cosine);
  set(made, kSqnrDb, s.sqnr_db);
  set(made, kScaleMin, s.scale_min);
  set(made, kScaleMax, s.scale_max);
  set(made, kTileRangeMean, s.tile_range_mean);
  set(made, kTileRangeMax, s.tile_range_max);
  set(made, kScaleError, s.scale_error);
  rows_.push_back(std::move(made));
}

void StatisticsCollector::dump(const std::string& site, const std::string& tensor) {
  const auto found = std::ranges::find(sites_, site, &Site::name);
  if (found == sites_.end()) {
    throw ConfigError("", 0, "--dump", site + ":" + tensor,
                      fmt::format("SITE:TENSOR, with one of the GEMM sites {} to {}",
                                  sites_.front().name, sites_.back().name));
  }
  if (std::ranges::find(tensor_names(), tensor) == tensor_names().end()) {
    throw ConfigError(
        "", 0, "--dump", site + ":" + tensor,
        fmt::format("SITE:TENSOR, with one of the tensors {}", fmt::join(tensor_names(), ", ")));
  }
  dumped_.insert({static_cast<int>(found - sites_.begin()), tensor});
}

std::vector<bf16> StatisticsCollector::values_of(const MatrixView& matrix) const {
  if (matrix.size() == 0) return {};
  const bf16* end = matrix.row(matrix.rows - 1) + matrix.columns;
  const HostView<bf16> view(memory_, std::span<const bf16>(matrix.data, end));
  std::vector<bf16> values;
  values.reserve(static_cast<size_t>(matrix.size()));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    const bf16* row = view.begin() + (matrix.row(r) - matrix.data);
    values.insert(values.end(), row, row + matrix.columns);
  }
  return values;
}

void StatisticsCollector::keep(int site, const std::string& tensor, const MatrixView& matrix) {
  if (!dumped_.contains({site, tensor})) return;
  Dump& kept = dumps_.emplace_back();
  kept.name = sites_[static_cast<size_t>(site)].name + "." + tensor;
  kept.rows = matrix.rows;
  kept.columns = matrix.columns;
  kept.values = values_of(matrix);
}

void StatisticsCollector::keep_rounded(int site, const std::string& tensor, Gemm gemm,
                                       const MatrixView& matrix, const Quantizer& quantizer,
                                       float given_scale) {
  if (!dumped_.contains({site, tensor})) return;
  const std::vector<bf16> x = values_of(matrix);
  const TileGrid grid = tile_grid(quantizer, matrix.rows, matrix.columns);
  const std::string name =
      fmt::format("{}.{}.{}", sites_[static_cast<size_t>(site)].name, tensor, gemm_name(gemm));
  Dump rounded{name + ".rounded", matrix.rows, matrix.columns, std::vector<bf16>(x.size()), {}};
  Dump scales{name + ".scales",
              grid.rows,
              grid.columns,
              {},
              std::vector<float>(static_cast<size_t>(grid.count()))};
  quantize_matrix(quantizer, x, matrix.rows, matrix.columns, given_scale, rounded.values,
                  scales.numbers);
  dumps_.push_back(std::move(rounded));
  dumps_.push_back(std::move(scales));
}

void StatisticsCollector::write_dumps(const std::string& path) const {
  std::vector<TensorView> tensors;
  for (const Dump& it : dumps_) {
    const bool numbers = !it.numbers.empty();
    const void* data = numbers ? static_cast<const void*>(it.numbers.data())
                               : static_cast<const void*>(it.values.data());
    tensors.push_back({it.name, numbers ? "F32" : "BF16", {it.rows, it.columns}, data});
  }
  write_safetensors(path, tensors, {{"format", "pt"}});
}

}  // namespace gnomon
