// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "optimizer.hpp"

// [template]
template class onebit::optimizer<onebit::adam_rule<onebit::host>, onebit::freeze,
                                 onebit::gather_scatter<onebit::sign<>>, float, float>;
// [/template]
