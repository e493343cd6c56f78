// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The sizes of the transformer.
#pragma once

namespace language_model {

struct model_shape {
  int vocabulary = 64;
  int context = 64;
  int width = 128;
  int heads = 4;
  int layers = 2;
};

}  // namespace language_model
