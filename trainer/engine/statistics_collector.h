// Gathers statistics of the tensors that a step's GEMMs read and write: of those chosen, for the
// rounding in use and for any other recipe ("what if"). It only reads: a run's weights are the same
// with it and without. docs/statistics.md says what each number means and what it costs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/memory.h"
#include "kernels/statistics.h"
#include "protocol/records.h"
#include "protocol/settings.h"
#include "trainer/engine/tensor_observer.h"

namespace gnomon {

class ParameterLayout;

struct StatisticsConfig {
  int64_t every = 0;                       // steps; 0 = off
  std::vector<std::string> match = {"*"};  // globs over sites
  // "weight_gradient" is the one more that may be asked for.
  std::vector<std::string> tensors = {"input", "weight", "gradient", "output"};
  std::vector<std::string> what_if;  // recipes, as what_if_precision() takes them
  int sites_max = 256;               // more than that match: an error

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = StatisticsConfig;
    v("every", &S::every,
      Setting{.range = {0, static_cast<double>(int64_t{1} << 40)},
              .unit = "steps",
              .help = "Distance of [measurements](statistics.md); 0: off."});
    v("match", &S::match, Setting{.accepted = "globs", .help = "Measured sites."});
    v("tensors", &S::tensors,
      Setting{.accepted = "`input`, `weight`, `gradient`, `output`, `weight_gradient`",
              .help = "Measured tensors."});
    v("what_if", &S::what_if,
      Setting{.accepted = "recipes, like `\"block\"` or `\"mx:e2m1\"`",
              .help = "Other recipes to evaluate."});
    v("sites_max", &S::sites_max,
      Setting{.range = {1, 1 << 20}, .help = "Most sites that may match."});
  }
};

// A recipe to ask "what if" about: its name ("block"), optionally with formats other than its own
// ("mx:e2m1", or "current:e4m3/e4m3" for forward and gradient). Throws ConfigError naming `key`.
GemmPrecision what_if_precision(const std::string& name, const std::string& file,
                                const std::string& key);

// Throws ConfigError (`file`, key "statistics.…") for globs that are none or match no site, unknown
// tensors and recipes, and more than sites_max sites.
void check_statistics(const StatisticsConfig& config, const std::vector<std::string>& sites,
                      int layers, const std::string& file);

class StatisticsCollector final : public TensorObserver {
 public:
  // Looks back that a tensor's amax is held against.
  static constexpr size_t kWindowLooks = 16;

  // `config` has passed check_statistics. The tensors lie in the backend's memory and are read
  // there; only those to be dumped are copied. `backend` must outlive this.
  StatisticsCollector(const StatisticsConfig& config, const std::vector<std::string>& sites,
                      int layers, const ParameterLayout& layout, BackendBase& backend);

  // Before a pass of n tokens; forgets the rows of the last one.
  void begin(int64_t n, const std::vector<SitePrecision>& precisions);
  // In the order in which the tensors were met.
  const std::vector<StatisticsRow>& rows() const { return rows_; }

  // Keeps a copy of this tensor for write_dumps(). Throws ConfigError for what does not exist.
  void dump(const std::string& site, const std::string& tensor);
  // One safetensors file with every tensor kept, and beside each the values it is rounded to in
  // each GEMM that rounds it ("SITE.TENSOR.GEMM.rounded", ".scales": rounded/scale ≈ tensor).
  void write_dumps(const std::string& path) const;

  // After the pass: the gradients of all parameters, numbered as ParameterLayout does, of the
  // tokens of this pass alone. Looked at as BF16.
  void weight_gradients(std::span<const float> gradients);

  void begin_products() override;
  // Only the first part of lm_head's rows is looked at.
  void begin_rows(int64_t first, int64_t count) override;
  void operand(int site, Gemm gemm, TensorRole role, std::span<const bf16> content,
               const Quantizer* quantizer, float given_scale) override;
  void output(int site, std::span<const bf16> content, int64_t n) override;

 private:
  struct Site {
    std::string name;
    int64_t in = 0;
    int64_t out = 0;
    int64_t weight_offset = 0;  // among all parameters
    bool chosen = false;
  };
  struct WhatIf {
    std::string name;
    GemmPrecision precision;
  };
  struct Dump {
    std::string name;
    int64_t rows = 0;
    int64_t columns = 0;
    std::vector<bf16> values;
    std::vector<float> numbers;  // scales, in place of values
  };

  // A tensor of the products at hand, and what was asked about it: q, k and v share their input.
  struct Seen {
    MatrixView matrix;
    TensorProbe probe;
    struct Answer {
      Quantizer quantizer;
      float given_scale;
      QuantizationStatistics statistics;
    };
    std::vector<Answer> answers = {};
    std::optional<TensorStatistics> statistics = {};
    const TensorStatistics& measure();
    const QuantizationStatistics& compare(const Quantizer& quantizer, float given_scale);
  };

  Seen& seen(const MatrixView& matrix);
  bool wanted(int site, const std::string& tensor) const;
  void operand_of(int site, Gemm gemm, TensorRole role, const MatrixView& matrix,
                  const Quantizer* quantizer, float given_scale);
  // The matrix row by row, on the host.
  std::vector<bf16> values_of(const MatrixView& matrix) const;
  StatisticsRow row(int site, const std::string& tensor) const;
  StatisticsRow* add_tensor_row(int site, const std::string& tensor,
                                const TensorStatistics& statistics);
  std::optional<double> amax_over_window(int site, const std::string& tensor, double amax);
  void add_gate_cosines(int site, const MatrixView& matrix, StatisticsRow& row);
  void add_rounding_row(int site, const std::string& tensor, Gemm gemm, const std::string& recipe,
                        bool in_use, const QuantizationStatistics& statistics);
  void keep(int site, const std::string& tensor, const MatrixView& matrix);
  void keep_rounded(int site, const std::string& tensor, Gemm gemm, const MatrixView& matrix,
                    const Quantizer& quantizer, float given_scale);

  std::vector<Site> sites_;
  std::set<std::string> tensors_;
  std::vector<WhatIf> what_if_;
  Memory& memory_;
  StatisticsSource& source_;
  int64_t n_ = 0;
  bool looks_ = true;  // at the rows at hand
  const std::vector<SitePrecision>* precisions_ = nullptr;
  std::vector<StatisticsRow> rows_;
  std::set<std::pair<int, std::string>> measured_;  // tensors with a row of their own already
  // amaxes of the newest looks, this one's too; without NaN.
  std::map<std::pair<int, std::string>, std::deque<double>> amaxes_;
  std::optional<MatrixView> gate_;  // the weight of the product at hand that gates the next site's
  std::set<std::pair<int, std::string>> dumped_;
  std::vector<Dump> dumps_;
  std::deque<Seen> seen_;
  Buffer<bf16> weight_gradient_;  // the one at hand
  int group_ = 1;                 // sites of the last gradient, which ran as one
};

}  // namespace gnomon
