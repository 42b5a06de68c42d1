// Scale: the same with data, to see that thousands of ranks get the right sums.
#include <algorithm>

#include "base/text.h"
#include "collectives/engine/run.h"
#include "collectives/plan/operation.h"
#include "sim/scale/scale.h"

namespace gradring::sim {
namespace {

// Small whole numbers: every order of additions gives the same bits.
float value_of(Rank rank, std::uint64_t element) {
  constexpr std::uint64_t kRanks = 31;
  constexpr std::uint64_t kValues = 17;
  const auto mixed = (static_cast<std::uint64_t>(rank) * kRanks + element * 7) % kValues;
  return static_cast<float>(mixed) - 8;
}

// The vector that all ranks' inputs make together.
std::vector<float> whole_of(const ScaleCase& c, std::uint64_t count) {
  std::vector<float> whole(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (c.op == OpKind::kAllGather) {
      Rank owner = 0;
      while (collectives::chunk_begin(count, c.ranks, owner + 1) <= i) ++owner;
      whole[i] = value_of(owner, i - collectives::chunk_begin(count, c.ranks, owner));
      continue;
    }
    for (Rank rank = 0; rank < (collectives::reduces(c.op) ? c.ranks : 1); ++rank)
      whole[i] += value_of(rank, i);
  }
  return whole;
}

struct Desk {
  std::vector<float> input;
  std::vector<float> output;
  std::vector<std::byte> scratch;
  std::vector<collectives::Plan> plans;
  std::size_t next = 0;
  std::optional<collectives::PlanRun> run;
};

Desk desk_of(const ScaleCase& c, Rank rank) {
  constexpr float kUntouched = 12345;
  const auto extents = extents_of(request_of(c, rank), rank, c.ranks);
  Desk desk;
  for (std::uint64_t i = 0; i < extents.input; ++i) desk.input.push_back(value_of(rank, i));
  // A reduce's senders and a broadcast's root may write theirs, or may not: room for either.
  desk.output.assign(std::max(extents.output, request_of(c, rank).count), kUntouched);
  desk.plans = plans_of(c, rank);
  std::uint64_t scratch = 0;
  for (const auto& plan : desk.plans) scratch = std::max(scratch, plan.scratch_bytes);
  desk.scratch.resize(scratch);
  return desk;
}

std::string complaint_about(const ScaleCase& c, const std::vector<float>& whole, const Desk& desk,
                            Rank rank) {
  const auto count = whole.size();
  const auto extents = extents_of(request_of(c, rank), rank, c.ranks);
  const auto first =
      c.op == OpKind::kReduceScatter ? collectives::chunk_begin(count, c.ranks, rank) : 0;
  for (std::uint64_t i = 0; i < extents.output; ++i)
    if (desk.output[i] != whole[first + i])
      return str("rank ", rank, " has ", desk.output[i], " at ", i, ", not ", whole[first + i]);
  return "";
}

}  // namespace

std::string wrong_result(const ScaleCase& c, const NetworkModel& model, double* us) {
  TimedNetwork network(model, c.ranks, true);
  collectives::Operation operation;
  operation.request = request_of(c, 0);
  const Call call = call_of(operation);
  std::vector<Desk> desks;
  for (Rank rank = 0; rank < c.ranks; ++rank) desks.push_back(desk_of(c, rank));
  const Nanos time = network.run([&](Rank rank) {
    Desk& desk = desks[static_cast<std::size_t>(rank)];
    while (!desk.run || desk.run->advance(network.peers(rank))) {
      if (desk.next == desk.plans.size()) return true;
      const collectives::RunBuffers buffers{std::as_bytes(std::span(desk.input)).data(),
                                            std::as_writable_bytes(std::span(desk.output)).data(),
                                            desk.scratch.data()};
      desk.run.emplace(desk.plans[desk.next++], call, 1, kernels::Reduction{}, buffers);
    }
    return false;
  });
  if (us != nullptr) *us = 1e-3 * static_cast<double>(time);
  const std::vector<float> whole = whole_of(c, operation.request.count);
  for (Rank rank = 0; rank < c.ranks; ++rank) {
    std::string complaint = complaint_about(c, whole, desks[static_cast<std::size_t>(rank)], rank);
    if (!complaint.empty()) return complaint;
  }
  return "";
}

}  // namespace gradring::sim
