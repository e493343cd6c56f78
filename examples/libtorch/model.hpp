// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// A character-level transformer in libtorch: tied embedding, a depthwise convolution in each layer.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace libtorch_example {

struct layer_impl : torch::nn::Module {
  explicit layer_impl(std::int64_t channels) : heads(channels / 16) {
    using namespace torch::nn;
    const auto linear = [this](const char* name, std::int64_t in, std::int64_t out) {
      return register_module(name, Linear(in, out));
    };
    convolution = register_module("convolution",
                                  Conv1d(Conv1dOptions(channels, channels, 3).groups(channels)));
    before_attention = register_module("before_attention", LayerNorm(LayerNormOptions({channels})));
    query_key_value = linear("query_key_value", channels, 3 * channels);
    projection = linear("projection", channels, channels);
    before_feed_forward =
        register_module("before_feed_forward", LayerNorm(LayerNormOptions({channels})));
    up = linear("up", channels, 4 * channels);
    down = linear("down", 4 * channels, channels);
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto rows = x.size(0), context = x.size(1), channels = x.size(2);
    x = x + convolution(torch::constant_pad_nd(x.transpose(1, 2), {2, 0})).transpose(1, 2);
    const auto parts = query_key_value(before_attention(x))
                           .view({rows, context, 3, heads, channels / heads})
                           .permute({2, 0, 3, 1, 4});
    const auto attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    x = x + projection(attended.transpose(1, 2).reshape({rows, context, channels}));
    return x + down(torch::gelu(up(before_feed_forward(x))));
  }

  std::int64_t heads;
  torch::nn::Conv1d convolution = nullptr;
  torch::nn::LayerNorm before_attention = nullptr, before_feed_forward = nullptr;
  torch::nn::Linear query_key_value = nullptr, projection = nullptr, up = nullptr, down = nullptr;
};
TORCH_MODULE_IMPL(layer, layer_impl);

struct transformer_impl : torch::nn::Module {
  transformer_impl(std::int64_t vocabulary, std::int64_t context, std::int64_t channels,
                   int n_layers) {
    using namespace torch::nn;
    token = register_module("token", Embedding(vocabulary, channels));
    torch::nn::init::normal_(token->weight, 0, 0.02);
    head = register_parameter("head", token->weight);  // tied
    position = register_parameter("position", 0.02 * torch::randn({context, channels}));
    for (int i = 0; i < n_layers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), layer(channels)));
    }
    last = register_module("last", LayerNorm(LayerNormOptions({channels})));
  }
  /// Mean cross-entropy. input: tokens (rows, context); target: the token that follows each.
  torch::Tensor loss(const torch::Tensor& input, const torch::Tensor& target) {
    auto x = token(input) + position;
    for (layer& l : layers) x = l(x);
    const auto logits = last(x).matmul(head.t());
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), target.flatten());
  }

  torch::nn::Embedding token = nullptr;
  torch::Tensor head, position;
  std::vector<layer> layers;
  torch::nn::LayerNorm last = nullptr;
};
TORCH_MODULE_IMPL(transformer, transformer_impl);

}  // namespace libtorch_example
