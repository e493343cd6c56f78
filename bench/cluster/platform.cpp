// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The cluster that SimGrid simulates, one host for each rank:
//
//   rank --- inside link --- switch of the node --- network card --- switch of the cluster
//
// Every link is full duplex. The ranks of a node have an inside link each (PCIe) and share one
// network card; the switches are never the limit. Given by the environment, because smpirun
// passes a platform nothing: CLUSTER_NODES, CLUSTER_RANKS_PER_NODE, CLUSTER_GBIT and
// CLUSTER_INSIDE_GBIT (Gbit/s, per card and per inside link), CLUSTER_LATENCY_US and
// CLUSTER_INSIDE_LATENCY_US (from rank to rank, between nodes and inside one).

#include <cstdlib>
#include <simgrid/s4u.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace sg = simgrid::s4u;

namespace {

double number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) throw std::invalid_argument(std::string(name) + " is not set");
  return std::stod(text);
}

/// Joins a host or a node to the middle of its star, by one link in each direction.
template <class Gateway>
void join(sg::NetZone* star, simgrid::kernel::routing::NetPoint* point, Gateway gateway,
          const std::string& name, double bytes_per_second, double latency) {
  const sg::Link* up =
      star->create_link(name + "_up", bytes_per_second)->set_latency(latency)->seal();
  const sg::Link* down =
      star->create_link(name + "_down", bytes_per_second)->set_latency(latency)->seal();
  star->add_route(point, nullptr, gateway, nullptr, {sg::LinkInRoute(up)}, false);
  star->add_route(nullptr, point, nullptr, gateway, {sg::LinkInRoute(down)}, false);
}

}  // namespace

extern "C" void load_platform(const sg::Engine& engine);
void load_platform(const sg::Engine&) {
  const int nodes = static_cast<int>(number("CLUSTER_NODES"));
  const int ranks_per_node = static_cast<int>(number("CLUSTER_RANKS_PER_NODE"));
  const double card = number("CLUSTER_GBIT") * 1e9 / 8;
  const double inside = number("CLUSTER_INSIDE_GBIT") * 1e9 / 8;
  const double latency = number("CLUSTER_LATENCY_US") * 1e-6;
  const double inside_latency = number("CLUSTER_INSIDE_LATENCY_US") * 1e-6;

  sg::NetZone* cluster = sg::create_star_zone("cluster");
  for (int i = 0; i < nodes; ++i) {
    const std::string name = "node" + std::to_string(i);
    sg::NetZone* node = sg::create_star_zone(name);
    node->set_parent(cluster);
    for (int j = 0; j < ranks_per_node; ++j) {
      const std::string rank = "rank" + std::to_string(i * ranks_per_node + j);
      const sg::Host* host = node->create_host(rank, 1e12)->seal();
      join(node, host->get_netpoint(), nullptr, rank, inside, inside_latency / 2);
    }
    auto* gateway = node->create_router(name + "_switch");
    node->add_route(gateway, nullptr, nullptr, nullptr, {});
    node->seal();
    join(cluster, node->get_netpoint(), gateway, name, card, (latency - inside_latency) / 2);
  }
  cluster->seal();
}
