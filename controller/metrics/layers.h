// How much of each layer runs in FP8 under a plan, for the metrics and the page.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gnomon {

// "3" for "model.layers.3.mlp.up_proj"; a site outside the layers (lm_head) is its own layer.
std::string layer_of_site(const std::string& site);

// Share of GEMMs in FP8 (0 to 1) for each layer, in the order in which `sites` first names them.
// Throws ConfigError on a plan that cannot be read.
std::vector<std::pair<std::string, double>> layer_shares(const std::string& plan_toml,
                                                         const std::vector<std::string>& sites,
                                                         int layers);

}  // namespace gnomon
