// `gnomon inspect` as an operator runs it: on a checkpoint of a small model in FP8.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <cmath>
#include <sstream>

#include "base/files.h"
#include "numerics/formats.h"
#include "protocol/json.h"
#include "protocol/json_text.h"
#include "storage/safetensors.h"
#include "tests/cli/program.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::cli {
namespace {

namespace fs = std::filesystem;
using test::EndedProcess;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr const char* kDown = "model.layers.1.mlp.down_proj";

class InspectTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new test::TemporaryDirectory();
    Engine engine(test::small_engine(directory_->path()));
    engine.set_plan(PrecisionPlan::parse(
        "version = 4\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n[[rule]]\nmatch = "
        "\"*.layers.1.mlp.down_proj\"\nrecipe = \"block\"\n[[rule]]\nmatch = \"lm_head\"\ngemms = "
        "\"bf16\"\n"));
    engine.initialize();
    test::train_hashes(engine, 3);
    checkpoint_ = new fs::path(test::write_checkpoint(engine, directory_->path() / "checkpoints"));
    sites_ = engine.config().model.sites().size();
  }
  static void TearDownTestSuite() {
    delete checkpoint_;
    delete directory_;
  }

  static EndedProcess inspect(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"inspect", "--checkpoint", checkpoint_->string()});
    return run_gnomon(arguments);
  }
  static std::vector<StatisticsRow> rows(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const EndedProcess result = inspect(arguments);
    EXPECT_EQ(result.status, 0) << result.errors;
    return from_json<StatisticsReport>(report_in(result.output)).rows;
  }
  // What is a StatisticsReport of what is printed.
  static std::string report_in(const std::string& output) {
    boost::json::object object = parse_json_exactly(output).as_object();
    for (const char* more : {"loss", "checkpoint", "checkpoint_step"}) object.erase(more);
    return boost::json::serialize(object);
  }
  // The cells below a heading of the table.
  static std::vector<std::string> column(const std::string& table, const std::string& heading) {
    std::istringstream lines(table);
    std::string line;
    std::getline(lines, line);
    auto words = [](const std::string& text) {
      std::vector<std::string> found;
      // "block ?" is one cell.
      for (size_t at = 0; at < text.size();) {
        const size_t begin = text.find_first_not_of(' ', at);
        if (begin == std::string::npos) break;
        const size_t end = std::min(text.find("  ", begin), text.size());
        found.push_back(text.substr(begin, end - begin));
        at = end;
      }
      return found;
    };
    const std::vector<std::string> headings = words(line);
    const auto found = std::ranges::find(headings, heading);
    EXPECT_NE(found, headings.end()) << heading << " in " << line;
    if (found == headings.end()) return {};
    std::vector<std::string> cells;
    while (std::getline(lines, line) && !line.starts_with("checkpoint of step")) {
      const std::vector<std::string> row = words(line);
      EXPECT_EQ(row.size(), headings.size()) << line;
      cells.push_back(row.at(static_cast<size_t>(found - headings.begin())));
    }
    return cells;
  }

  static test::TemporaryDirectory* directory_;
  static fs::path* checkpoint_;
  static size_t sites_;
};
test::TemporaryDirectory* InspectTest::directory_ = nullptr;
fs::path* InspectTest::checkpoint_ = nullptr;
size_t InspectTest::sites_ = 0;

TEST_F(InspectTest, TheTableIsSortedByTheNumberAskedForWorstFirst) {
  for (const auto& [key, small_first] :
       {std::pair{"sqnr_db", true}, std::pair{"underflow", false}, std::pair{"l2", false},
        std::pair{"cosine", true}, std::pair{"token_kurtosis_max", false}}) {
    const EndedProcess result = inspect({"--sort", key});
    ASSERT_EQ(result.status, 0) << result.errors;
    const std::vector<std::string> cells = column(result.output, key);
    ASSERT_GT(cells.size(), 6u * sites_);
    std::vector<double> numbers;
    bool blank = false;
    for (const std::string& cell : cells) {
      blank = blank || cell == "-";
      EXPECT_EQ(blank, cell == "-") << "what has no number comes last: " << key;
      if (!blank) numbers.push_back(std::stod(cell));
    }
    if (!small_first) std::ranges::reverse(numbers);
    EXPECT_TRUE(std::ranges::is_sorted(numbers)) << key;
    EXPECT_LT(numbers.front(), numbers.back()) << key;
  }
  const std::vector<std::string> tensors = column(inspect({"--sort", "tensor"}).output, "tensor");
  EXPECT_TRUE(std::ranges::is_sorted(tensors));
  EXPECT_EQ(column(inspect({"--sort", "site"}).output, "site").front(),
            "model.layers.0.self_attn.q_proj");
}

TEST_F(InspectTest, TheTableIsOfTheNextStepUnlessAnotherBatchIsNamed) {
  const EndedProcess next = inspect({});
  EXPECT_THAT(next.output, HasSubstr("checkpoint of step 3, batch 4: loss "));
  const EndedProcess named = inspect({"--batch", "4"});
  EXPECT_EQ(named.output, next.output);
  const EndedProcess other = inspect({"--batch", "7"});
  EXPECT_THAT(other.output, HasSubstr("checkpoint of step 3, batch 7: loss "));
  EXPECT_NE(other.output.substr(0, other.output.find("checkpoint of")),
            next.output.substr(0, next.output.find("checkpoint of")));
}

TEST_F(InspectTest, JsonHasEveryRowInFull) {
  const EndedProcess result = inspect({"--json", "--what-if", "mx:e2m1", "block"});
  ASSERT_EQ(result.status, 0) << result.errors;
  const boost::json::object object = boost::json::parse(result.output).as_object();
  EXPECT_EQ(object.at("step").as_int64(), 4);
  EXPECT_EQ(object.at("checkpoint_step").as_int64(), 3);
  EXPECT_EQ(object.at("plan_version").as_int64(), 4);
  EXPECT_EQ(object.at("checkpoint").as_string(), checkpoint_->string());
  EXPECT_GT(object.at("loss").to_number<double>(), 1.0);
  const auto report = from_json<StatisticsReport>(report_in(result.output));
  // Every site's four tensors; six roundings in use but at the head; six of either what-if.
  EXPECT_EQ(report.rows.size(), 4 * sites_ + 6 * (sites_ - 1) + 2 * 6 * sites_);
  std::map<std::string, int> recipes;
  for (const StatisticsRow& row : report.rows) {
    if (row.recipe.empty()) {
      EXPECT_FALSE(row.histogram.empty());
      EXPECT_TRUE(row.number(StatisticsNumber::kKurtosis).has_value());
      continue;
    }
    ++recipes[row.recipe + (row.in_use ? "" : "?")];
    if (row.in_use) {
      EXPECT_EQ(row.recipe, row.site == kDown ? "block" : "current");
    }
    EXPECT_TRUE(row.number(StatisticsNumber::kSqnrDb).has_value());
  }
  EXPECT_EQ(recipes["block"], 6);
  EXPECT_EQ(recipes["mx:e2m1?"], static_cast<int>(6 * sites_));
  EXPECT_EQ(recipes["block?"], static_cast<int>(6 * sites_));
}

TEST_F(InspectTest, SeveralWhatIfsAreMarkedAndOnlyWhatIsChosenIsShown) {
  const EndedProcess result =
      inspect({"--what-if", "block", "--what-if", "mx", "rowwise", "current:e4m3/e4m3", "--match",
               "*.down_proj", "--tensor", "gradient"});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(column(result.output, "site"), Each(HasSubstr("down_proj")));
  EXPECT_THAT(column(result.output, "tensor"), Each(std::string("gradient")));
  std::map<std::string, int> recipes;
  for (const std::string& recipe : column(result.output, "recipe")) ++recipes[recipe];
  EXPECT_EQ(recipes, (std::map<std::string, int>{{"block", 2},
                                                 {"current", 2},
                                                 {"block ?", 4},
                                                 {"mx ?", 4},
                                                 {"rowwise ?", 4},
                                                 {"current:e4m3/e4m3 ?", 4}}));
  // A narrower format loses more, of the same tensor.
  double e4m3 = 0, e2m1 = 0;
  for (const StatisticsRow& row :
       rows({"--what-if", "mx:e4m3", "mx:e2m1", "--match", kDown, "--tensor", "weight"})) {
    if (row.recipe == "mx:e4m3") e4m3 = *row.number(StatisticsNumber::kSqnrDb);
    if (row.recipe == "mx:e2m1") e2m1 = *row.number(StatisticsNumber::kSqnrDb);
  }
  EXPECT_GT(e4m3, e2m1 + 5);
}

// Every digit: what is printed reads back as what was gathered.
TEST_F(InspectTest, JsonLosesNoBitOfANumber) {
  Engine engine(read_engine_config(*checkpoint_), EngineRole::kReplay);
  std::unique_ptr<StatisticsCollector> collector = engine.statistics({}, "test");
  engine.load(*checkpoint_);
  engine.inspect(4, *collector);
  const std::vector<StatisticsRow> printed = rows({});
  ASSERT_EQ(printed.size(), collector->rows().size());
  for (size_t i = 0; i < printed.size(); ++i) {
    EXPECT_EQ(printed[i].numbers, collector->rows()[i].numbers) << printed[i].site;
  }
}

double value(const TensorView& view, int64_t i) {
  if (view.dtype == "F32") return static_cast<double>(static_cast<const float*>(view.data)[i]);
  return static_cast<double>(to_float(static_cast<const bf16*>(view.data)[i]));
}

// Rounded/scale against the tensor: the mean of the squared errors.
double mse_of(const TensorView& x, const TensorView& rounded, const TensorView& scales) {
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const int64_t tile_rows = (rows + scales.shape[0] - 1) / scales.shape[0];
  const int64_t tile_columns = (columns + scales.shape[1] - 1) / scales.shape[1];
  double errors = 0;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t tile = i / columns / tile_rows * scales.shape[1] + i % columns / tile_columns;
    const double error = value(rounded, i) / value(scales, tile) - value(x, i);
    errors += error * error;
  }
  return errors / static_cast<double>(rows * columns);
}

TEST_F(InspectTest, DumpsHoldTheTensorItsRoundedCopiesAndTheirScales) {
  const std::string q = "model.layers.0.self_attn.q_proj";
  const fs::path out = directory_->path() / "dump.safetensors";
  const EndedProcess result =
      inspect({"--dump", q + ":input", "--dump", std::string(kDown) + ":weight", "--dump",
               "lm_head:output", "--out", out.string()});
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("tensors written to " + out.string()));
  SafetensorsFile file(out);
  EXPECT_EQ(file.tensors().size(), 5u + 5u + 1u);
  const std::vector<StatisticsRow> known = rows({});
  for (const auto& [tensor, gemm] :
       {std::pair{q + ".input", "fprop"}, std::pair{q + ".input", "wgrad"},
        std::pair{std::string(kDown) + ".weight", "fprop"},
        std::pair{std::string(kDown) + ".weight", "dgrad"}}) {
    const TensorView* x = file.find(tensor);
    const TensorView* rounded = file.find(tensor + "." + gemm + ".rounded");
    const TensorView* scales = file.find(tensor + "." + gemm + ".scales");
    ASSERT_TRUE(x != nullptr && rounded != nullptr && scales != nullptr) << tensor << gemm;
    EXPECT_EQ(rounded->shape, x->shape);
    const double mse = mse_of(*x, *rounded, *scales);
    EXPECT_GT(mse, 0);
    bool met = false;
    for (const StatisticsRow& row : known) {
      if (fmt::format("{}.{}", row.site, row.tensor) != tensor || row.gemm.text() != gemm) continue;
      EXPECT_NEAR(*row.number(StatisticsNumber::kMse), mse, 1e-9 * mse);
      met = true;
    }
    EXPECT_TRUE(met);
  }
  const TensorView* logits = file.find("lm_head.output");
  ASSERT_NE(logits, nullptr);
  EXPECT_EQ(logits->shape, (std::vector<int64_t>{32, 64}));
}

TEST_F(InspectTest, LooksAtACheckpointWithoutTouchingIt) {
  auto content = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(*checkpoint_)) {
      files[entry.path().filename().string()] = read_file(entry.path());
    }
    return files;
  };
  const auto before = content();
  inspect({"--what-if", "block"});
  EXPECT_EQ(content(), before);
}

struct Mistake {
  std::vector<std::string> arguments;
  std::vector<std::string> said;
};

TEST_F(InspectTest, MistakesAreNamedWithWhatWouldBeAccepted) {
  const std::string site = kDown;
  const std::vector<Mistake> mistakes = {
      {{"--what-if", "blocks"}, {"--what-if = blocks", "current, delayed, rowwise"}},
      {{"--what-if", "mx", "mx:e9m9"}, {"--what-if = mx:e9m9", "e4m3"}},
      {{"--what-if", "mx:fp32"}, {"--what-if = mx:fp32"}},
      {{"--match", "*.sideways"}, {"--match = *.sideways", "lm_head"}},
      {{"--match", "model.{a"}, {"--match = model.{a"}},
      {{"--tensor", "activation"}, {"--tensor = activation", "input, weight, gradient, output"}},
      {{"--sort", "badness"}, {"--sort = badness", "site, tensor, nans", "sqnr_db"}},
      {{"--batch", "0"}, {"--batch"}},
      {{"--batch", "three"}, {"--batch"}},
      {{"--threads", "0"}, {"--threads"}},
      {{"--dump", site + ":amax"}, {"--dump = " + site + ":amax", "input, weight"}},
      {{"--dump", site}, {"--dump = " + site, "SITE:TENSOR"}},
      {{"--dump", "model.layers.9.mlp.up_proj:input"},
       {"--dump = model.layers.9.mlp.up_proj:input", "lm_head"}},
      {{"--dump", site + ":input", "--out", "/nowhere/at/all/x.safetensors"},
       {"/nowhere/at/all/x.safetensors"}},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.arguments.back());
    const EndedProcess result = inspect(mistake.arguments);
    EXPECT_EQ(result.status, 2) << result.errors << result.output;
    EXPECT_EQ(result.output, "");
    EXPECT_EQ(std::ranges::count(result.errors, '\n'), 1) << result.errors;
    EXPECT_THAT(result.errors, ::testing::StartsWith("gnomon: "));
    for (const std::string& text : mistake.said) EXPECT_THAT(result.errors, HasSubstr(text));
  }
  for (const char* absent : {"/absent", "/dev/null"}) {
    const EndedProcess result = run_gnomon({"inspect", "--checkpoint", absent});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.errors, AllOf(HasSubstr(absent), HasSubstr("a checkpoint directory")));
  }
  EXPECT_EQ(run_gnomon({"inspect"}).status, 2);
}

}  // namespace
}  // namespace gnomon::cli
