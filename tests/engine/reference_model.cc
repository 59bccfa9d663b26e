#include "tests/engine/reference_model.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "tests/engine/reference_rounding.h"

namespace gnomon::test {
namespace {

double amax_of(const Vector& x) {
  double amax = 0;
  for (double value : x) amax = std::max(amax, std::abs(value));
  return amax;
}

void add_into(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

std::string layer_name(int index) { return "model.layers." + std::to_string(index) + "."; }

}  // namespace

void ReferenceModel::round_all(Vector& x) const {
  for (double& value : x) value = r(value);
}

Vector ReferenceModel::operand(const std::string& site, Gemm gemm, const std::string& tensor,
                               const Vector& x, int columns) const {
  const GemmPrecision precision = plan.resolve(site, config.layers)[gemm];
  if (!rounds || !precision.fp8) return x;
  const Format format = tensor == "gradient" ? precision.gradient_format : precision.forward_format;
  const Quantizer quantizer = description(precision, gemm, tensor, format);
  if (quantizer.tile != TileShape{}) {
    const Vector* quantised = quantised_operand(x, quantizer, 0);
    return quantised == nullptr ? quantise_tiles(quantizer, 0, x, columns) : *quantised;
  }
  double amax = amax_of(x);
  if (precision.recipe == Recipe::kDelayed) {
    double from_history = history_amax(site, tensor);
    if (from_history > 0) amax = from_history;
  }
  int margin = precision.recipe == Recipe::kDelayed ? precision.margin : 0;
  double wide = std::ldexp(own_scale(quantizer.rule, largest_of(format), amax), -margin);
  if (const Vector* quantised = quantised_operand(x, quantizer, wide)) return *quantised;
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    double scaled = static_cast<double>(static_cast<float>(x[i] * wide));
    y[i] = round_to_format(quantizer.format, scaled) / wide;
  }
  return y;
}

Vector ReferenceModel::fprop(const std::string& site, const Vector& x, const std::string& weight,
                             int in, int out) const {
  Vector qx = operand(site, Gemm::kFprop, "input", x, in);
  Vector qw = operand(site, Gemm::kFprop, "weight", weights.at(weight), in);
  Vector y(static_cast<size_t>(n_) * static_cast<size_t>(out));
  for (int row = 0; row < n_; ++row) {
    for (int o = 0; o < out; ++o) {
      double sum = 0;
      for (int i = 0; i < in; ++i) sum += qx[at(row, in, i)] * qw[at(o, in, i)];
      y[at(row, out, o)] = r(sum);
    }
  }
  return y;
}

Vector ReferenceModel::dgrad(const std::string& site, const Vector& dy, const std::string& weight,
                             int in, int out) const {
  Vector qdy = operand(site, Gemm::kDgrad, "gradient", dy, out);
  Vector qw = operand(site, Gemm::kDgrad, "weight", weights.at(weight), in);
  Vector dx(static_cast<size_t>(n_) * static_cast<size_t>(in));
  for (int row = 0; row < n_; ++row) {
    for (int i = 0; i < in; ++i) {
      double sum = 0;
      for (int o = 0; o < out; ++o) sum += qdy[at(row, out, o)] * qw[at(o, in, i)];
      dx[at(row, in, i)] = sum;
    }
  }
  return dx;
}

void ReferenceModel::wgrad(const std::string& site, const Vector& dy, const Vector& x,
                           const std::string& weight, int in, int out) {
  Vector qdy = operand(site, Gemm::kWgrad, "gradient", dy, out);
  Vector qx = operand(site, Gemm::kWgrad, "input", x, in);
  Vector& dw = gradients[weight];
  for (int o = 0; o < out; ++o) {
    for (int i = 0; i < in; ++i) {
      for (int row = 0; row < n_; ++row)
        dw[at(o, in, i)] += qdy[at(row, out, o)] * qx[at(row, in, i)];
    }
  }
}

Vector ReferenceModel::norm(const Vector& residual, const std::string& weight, Vector& rstd) const {
  const Vector& w = weights.at(weight);
  const int width = static_cast<int>(w.size()), rows = static_cast<int>(residual.size()) / width;
  rstd.assign(static_cast<size_t>(rows), 0);
  Vector y(residual.size());
  for (int row = 0; row < rows; ++row) {
    double sum = 0;
    for (int i = 0; i < width; ++i)
      sum += residual[at(row, width, i)] * residual[at(row, width, i)];
    rstd[static_cast<size_t>(row)] = 1.0 / std::sqrt(sum / width + config.norm_eps);
    for (int i = 0; i < width; ++i) {
      y[at(row, width, i)] = r(residual[at(row, width, i)] * rstd[static_cast<size_t>(row)] *
                               w[static_cast<size_t>(i)]);
    }
  }
  return y;
}

void ReferenceModel::norm_backward(const Vector& residual, const std::string& weight,
                                   const Vector& rstd, const Vector& dy, Vector& d_residual) {
  const Vector& w = weights.at(weight);
  Vector& dw = gradients[weight];
  const int width = static_cast<int>(w.size()), rows = static_cast<int>(residual.size()) / width;
  for (int row = 0; row < rows; ++row) {
    double s = rstd[static_cast<size_t>(row)];
    double mean = 0;
    for (int i = 0; i < width; ++i) {
      mean += dy[at(row, width, i)] * w[static_cast<size_t>(i)] * residual[at(row, width, i)] * s /
              width;
    }
    for (int i = 0; i < width; ++i) {
      size_t k = at(row, width, i);
      double unit = residual[k] * s;
      dw[static_cast<size_t>(i)] += dy[k] * unit;
      d_residual[k] = r(d_residual[k] + s * (dy[k] * w[static_cast<size_t>(i)] - unit * mean));
    }
  }
}

void ReferenceModel::rotate(Vector& x, int heads, bool inverse) const {
  int size = config.head_dim();
  for (int row = 0; row < n_; ++row) {
    for (int head = 0; head < heads; ++head) {
      for (int i = 0; i < size / 2; ++i) {
        double angle = (row % t_) * config.rotary().frequency(i, size);
        if (inverse) angle = -angle;
        double& a = x[at(row, int64_t{heads} * size, int64_t{head} * size + i)];
        double& b = x[at(row, int64_t{heads} * size, int64_t{head} * size + i + size / 2)];
        double a0 = a;
        a = r(a0 * std::cos(angle) - b * std::sin(angle));
        b = r(b * std::cos(angle) + a0 * std::sin(angle));
      }
    }
  }
}

void ReferenceModel::attention(Layer& layer) const {
  int size = config.head_dim();
  int width = config.heads * size;
  int kv_width = config.kv_heads * size;
  layer.attended.assign(layer.q.size(), 0);
  layer.probabilities.assign(static_cast<size_t>(n_ * config.heads * t_), 0);
  for (int row = 0; row < n_; ++row) {
    int first = row / t_ * t_;
    for (int head = 0; head < config.heads; ++head) {
      int kv = head / (config.heads / config.kv_heads) * size;
      double* p = &layer.probabilities[at(int64_t{row} * config.heads + head, t_, 0)];
      double sum = 0;
      for (int other = first; other <= row; ++other) {
        double dot = 0;
        for (int i = 0; i < size; ++i) {
          dot += layer.q[at(row, width, head * size + i)] * layer.k[at(other, kv_width, kv + i)];
        }
        sum += p[other - first] = std::exp(dot / std::sqrt(static_cast<double>(size)));
      }
      for (int other = first; other <= row; ++other) {
        p[other - first] /= sum;
        for (int i = 0; i < size; ++i) {
          layer.attended[at(row, width, head * size + i)] +=
              r(p[other - first]) * layer.v[at(other, kv_width, kv + i)];
        }
      }
    }
  }
  round_all(layer.attended);
}

void ReferenceModel::attention_backward(const Layer& layer, const Vector& d_o, Vector& dq,
                                        Vector& dk, Vector& dv) const {
  int size = config.head_dim();
  int width = config.heads * size;
  int kv_width = config.kv_heads * size;
  double root = std::sqrt(static_cast<double>(size));
  dq.assign(layer.q.size(), 0);
  dk.assign(layer.k.size(), 0);
  dv.assign(layer.v.size(), 0);
  for (int row = 0; row < n_; ++row) {
    int first = row / t_ * t_;
    for (int head = 0; head < config.heads; ++head) {
      int kv = head / (config.heads / config.kv_heads) * size;
      const double* p = &layer.probabilities[at(int64_t{row} * config.heads + head, t_, 0)];
      double delta = 0;
      for (int i = 0; i < size; ++i) {
        size_t k = at(row, width, head * size + i);
        delta += d_o[k] * layer.attended[k];
      }
      for (int other = first; other <= row; ++other) {
        double dp = 0;
        for (int i = 0; i < size; ++i) {
          double g = d_o[at(row, width, head * size + i)];
          dp += g * layer.v[at(other, kv_width, kv + i)];
          dv[at(other, kv_width, kv + i)] += r(p[other - first]) * g;
        }
        double ds = r(p[other - first] * (dp - delta) / root);
        for (int i = 0; i < size; ++i) {
          dq[at(row, width, head * size + i)] += ds * layer.k[at(other, kv_width, kv + i)];
          dk[at(other, kv_width, kv + i)] += ds * layer.q[at(row, width, head * size + i)];
        }
      }
    }
  }
  round_all(dq);
  round_all(dk);
  round_all(dv);
}

void ReferenceModel::add_bias(Vector& y, const std::string& name) const {
  if (!config.qkv_bias) return;
  const Vector& bias = weights.at(name);
  for (size_t i = 0; i < y.size(); ++i) y[i] = r(y[i] + bias[i % bias.size()]);
}

void ReferenceModel::bias_backward(const Vector& dy, const std::string& name) {
  if (!config.qkv_bias) return;
  Vector& db = gradients[name];
  for (size_t i = 0; i < dy.size(); ++i) db[i % db.size()] += dy[i];
}

void ReferenceModel::norm_heads(Vector& x, const std::string& weight, Vector& before,
                                Vector& rstd) const {
  if (!config.qk_norm) return;
  before = x;
  x = norm(before, weight, rstd);
}

void ReferenceModel::norm_heads_backward(Vector& dy, const std::string& weight,
                                         const Vector& before, const Vector& rstd) {
  if (!config.qk_norm) return;
  Vector d_before(dy.size(), 0);
  norm_backward(before, weight, rstd, dy, d_before);
  dy = d_before;
}

Vector ReferenceModel::forward_layer(int index, const Vector& residual) {
  Layer& layer = layers_[static_cast<size_t>(index)];
  std::string name = layer_name(index);
  int width = config.width;
  int attention_width = config.heads * config.head_dim();
  int kv_width = config.kv_heads * config.head_dim();
  layer.residual1 = residual;
  layer.normed1 = norm(residual, name + "input_layernorm.weight", layer.rstd1);
  auto project = [&](const std::string& which, int out) {
    std::string site = name + "self_attn." + which;
    Vector y = fprop(site, layer.normed1, site + ".weight", width, out);
    add_bias(y, site + ".bias");
    return y;
  };
  layer.q = project("q_proj", attention_width);
  layer.k = project("k_proj", kv_width);
  layer.v = project("v_proj", kv_width);
  norm_heads(layer.q, name + "self_attn.q_norm.weight", layer.q_before, layer.q_rstd);
  norm_heads(layer.k, name + "self_attn.k_norm.weight", layer.k_before, layer.k_rstd);
  rotate(layer.q, config.heads, false);
  rotate(layer.k, config.kv_heads, false);
  attention(layer);
  std::string o = name + "self_attn.o_proj";
  layer.residual2 = fprop(o, layer.attended, o + ".weight", attention_width, width);
  add_into(layer.residual2, residual);
  round_all(layer.residual2);
  layer.normed2 = norm(layer.residual2, name + "post_attention_layernorm.weight", layer.rstd2);
  std::string mlp = name + "mlp.";
  layer.gate = fprop(mlp + "gate_proj", layer.normed2, mlp + "gate_proj.weight", width, config.ffn);
  layer.up = fprop(mlp + "up_proj", layer.normed2, mlp + "up_proj.weight", width, config.ffn);
  layer.hidden.resize(layer.gate.size());
  for (size_t i = 0; i < layer.gate.size(); ++i) {
    layer.hidden[i] = r(layer.gate[i] / (1.0 + std::exp(-layer.gate[i])) * layer.up[i]);
  }
  Vector next = fprop(mlp + "down_proj", layer.hidden, mlp + "down_proj.weight", config.ffn, width);
  add_into(next, layer.residual2);
  round_all(next);
  return next;
}

void ReferenceModel::backward_layer(int index, Vector& d_residual) {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  std::string name = layer_name(index);
  int width = config.width;
  int attention_width = config.heads * config.head_dim();
  int kv_width = config.kv_heads * config.head_dim();
  auto back = [&](const std::string& site, const Vector& dy, const Vector& x, int in, int out) {
    wgrad(site, dy, x, site + ".weight", in, out);
    return dgrad(site, dy, site + ".weight", in, out);
  };
  std::string mlp = name + "mlp.";
  Vector d_hidden = back(mlp + "down_proj", d_residual, layer.hidden, config.ffn, width);
  round_all(d_hidden);
  Vector d_gate(d_hidden.size());
  Vector d_up(d_hidden.size());
  for (size_t i = 0; i < d_hidden.size(); ++i) {
    double s = 1.0 / (1.0 + std::exp(-layer.gate[i]));
    d_gate[i] = r(d_hidden[i] * layer.up[i] * s * (1.0 + layer.gate[i] * (1.0 - s)));
    d_up[i] = r(d_hidden[i] * layer.gate[i] * s);
  }
  Vector d_normed = back(mlp + "gate_proj", d_gate, layer.normed2, width, config.ffn);
  add_into(d_normed, back(mlp + "up_proj", d_up, layer.normed2, width, config.ffn));
  round_all(d_normed);
  norm_backward(layer.residual2, name + "post_attention_layernorm.weight", layer.rstd2, d_normed,
                d_residual);

  std::string attn = name + "self_attn.";
  Vector d_o = back(attn + "o_proj", d_residual, layer.attended, attention_width, width);
  round_all(d_o);
  Vector dq, dk, dv;
  attention_backward(layer, d_o, dq, dk, dv);
  rotate(dq, config.heads, true);
  rotate(dk, config.kv_heads, true);
  norm_heads_backward(dq, attn + "q_norm.weight", layer.q_before, layer.q_rstd);
  norm_heads_backward(dk, attn + "k_norm.weight", layer.k_before, layer.k_rstd);
  bias_backward(dq, attn + "q_proj.bias");
  bias_backward(dk, attn + "k_proj.bias");
  bias_backward(dv, attn + "v_proj.bias");
  d_normed = back(attn + "q_proj", dq, layer.normed1, width, attention_width);
  add_into(d_normed, back(attn + "k_proj", dk, layer.normed1, width, kv_width));
  add_into(d_normed, back(attn + "v_proj", dv, layer.normed1, width, kv_width));
  round_all(d_normed);
  norm_backward(layer.residual1, name + "input_layernorm.weight", layer.rstd1, d_normed,
                d_residual);
}

double ReferenceModel::cross_entropy(const std::vector<int32_t>& targets, double scale,
                                     Vector& d_logits) const {
  int vocabulary = config.vocabulary;
  d_logits.assign(logits.size(), 0);
  double total = 0;
  for (int row = 0; row < n_; ++row) {
    double largest = -1e300;
    double sum = 0;
    for (int i = 0; i < vocabulary; ++i)
      largest = std::max(largest, logits[at(row, vocabulary, i)]);
    for (int i = 0; i < vocabulary; ++i) sum += std::exp(logits[at(row, vocabulary, i)] - largest);
    int target = targets[static_cast<size_t>(row)];
    total += std::log(sum) + largest - logits[at(row, vocabulary, target)];
    for (int i = 0; i < vocabulary; ++i) {
      double p = std::exp(logits[at(row, vocabulary, i)] - largest) / sum;
      d_logits[at(row, vocabulary, i)] = r((p - (i == target ? 1.0 : 0.0)) * scale);
    }
  }
  return total;
}

double ReferenceModel::run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                           double scale, bool backward) {
  n_ = static_cast<int>(tokens.size());
  int width = config.width;
  const Vector& table = weights.at("model.embed_tokens.weight");
  Vector residual(static_cast<size_t>(n_) * static_cast<size_t>(width));
  for (int row = 0; row < n_; ++row) {
    for (int i = 0; i < width; ++i) {
      residual[at(row, width, i)] = table[at(tokens[static_cast<size_t>(row)], width, i)];
    }
  }
  layers_.assign(static_cast<size_t>(config.layers), {});
  for (int index = 0; index < config.layers; ++index) residual = forward_layer(index, residual);
  Vector rstd;
  Vector normed = norm(residual, "model.norm.weight", rstd);
  std::string head = config.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  logits = fprop("lm_head", normed, head, width, config.vocabulary);
  Vector d_logits;
  double loss_sum = cross_entropy(targets, scale, d_logits);
  if (!backward) return loss_sum;

  gradients.clear();
  for (const auto& [name, values] : weights) gradients[name].assign(values.size(), 0);
  Vector d_normed = dgrad("lm_head", d_logits, head, width, config.vocabulary);
  round_all(d_normed);
  wgrad("lm_head", d_logits, normed, head, width, config.vocabulary);
  Vector d_residual(residual.size(), 0);
  norm_backward(residual, "model.norm.weight", rstd, d_normed, d_residual);
  for (int index = config.layers - 1; index >= 0; --index) backward_layer(index, d_residual);
  Vector& d_table = gradients["model.embed_tokens.weight"];
  for (int row = 0; row < n_; ++row) {
    for (int i = 0; i < width; ++i) {
      d_table[at(tokens[static_cast<size_t>(row)], width, i)] += d_residual[at(row, width, i)];
    }
  }
  return loss_sum;
}

double ReferenceModel::forward_backward(const std::vector<int32_t>& tokens,
                                        const std::vector<int32_t>& targets,
                                        int tokens_per_sequence, double gradient_scale) {
  t_ = tokens_per_sequence;
  return run(tokens, targets, gradient_scale, true);
}

double ReferenceModel::loss(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                            int tokens_per_sequence) {
  t_ = tokens_per_sequence;
  return run(tokens, targets, 1.0, false);
}

}  // namespace gnomon::test
