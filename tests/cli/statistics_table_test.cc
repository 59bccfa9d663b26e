// The table of tensor statistics: which order its lines have.
#include "cli/statistics_table.h"

#include <gtest/gtest.h>

namespace gnomon::cli {
namespace {

std::vector<std::string> sites_in_order(const std::vector<std::string>& given) {
  std::vector<StatisticsRow> rows;
  for (const std::string& site : given) {
    StatisticsRow row;
    row.site = site;
    row.tensor = "weight";
    rows.push_back(row);
  }
  const std::string table = statistics_table(rows, "site");
  std::vector<std::string> found;
  for (size_t at = table.find('\n') + 1; at < table.size(); at = table.find('\n', at) + 1) {
    found.push_back(table.substr(at, table.find(' ', at) - at));
  }
  return found;
}

TEST(StatisticsTable, LayersGoByTheirNumberAndNotByTheirDigits) {
  // As a ledger has them, by text.
  EXPECT_EQ(sites_in_order({"lm_head", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj",
                            "model.layers.10.mlp.down_proj", "model.layers.10.mlp.up_proj",
                            "model.layers.2.mlp.down_proj", "model.layers.2.mlp.up_proj"}),
            (std::vector<std::string>{"lm_head", "model.layers.0.mlp.up_proj",
                                      "model.layers.1.mlp.up_proj", "model.layers.2.mlp.down_proj",
                                      "model.layers.2.mlp.up_proj", "model.layers.10.mlp.down_proj",
                                      "model.layers.10.mlp.up_proj"}));
}

TEST(StatisticsTable, TheModelsOrderStaysAsItIs) {
  const std::vector<std::string> model = {"model.layers.2.self_attn.q_proj",
                                          "model.layers.2.mlp.gate_proj",
                                          "model.layers.10.self_attn.q_proj", "lm_head"};
  EXPECT_EQ(sites_in_order(model), model);
  EXPECT_EQ(sites_in_order({"head"}), std::vector<std::string>{"head"});
}

}  // namespace
}  // namespace gnomon::cli
