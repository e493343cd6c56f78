// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <type_traits>
namespace onebit {
template <class T>
concept Element = std::is_same_v<T, float>;
}
