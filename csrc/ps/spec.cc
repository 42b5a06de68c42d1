#include "ps/spec.h"

#include <cmath>
#include <unordered_set>

#include "base/config.h"
#include "base/error.h"
#include "ps/partition.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kNameBytes = 512;

[[noreturn]] void refuse(const TableSpec& spec, const std::string& what) {
  throw InvalidArgument(str("table \"", spec.name, "\": ", what));
}

void require_valid_init(const TableSpec& spec) {
  const auto& [kind, a, b] = spec.init;
  if (!std::isfinite(a) || !std::isfinite(b))
    refuse(spec, "the initializer's numbers must be finite");
  if (kind == InitKind::kUniform && !(a <= b && std::isfinite(b - a)))
    refuse(spec, str("a uniform initializer from ", a, " to ", b,
                     ": the first must not be larger, ", "and their difference must be a float32"));
  if (kind == InitKind::kNormal && b < 0)
    refuse(spec, str("a standard deviation must not be negative, got ", b));
}

void require_valid_entry(const TableSpec& spec, const Entry& entry) {
  if (!(entry.probability > 0 && entry.probability <= 1))
    refuse(spec, str("the probability of entry must be in (0, 1], got ", entry.probability));
}

void require_valid_sparse(const TableSpec& spec) {
  if (spec.dim < 1 || spec.dim > limits::kPsDim)
    refuse(spec, str("dim must be 1 .. ", limits::kPsDim, ", got ", spec.dim));
  if (!(spec.score_decay >= 0 && spec.score_decay <= 1))
    refuse(spec, str("score_decay must be in [0, 1], got ", spec.score_decay));
  require_valid_entry(spec, spec.entry);
  if (spec.slot_shift > 64) refuse(spec, str("slot_shift must be 0 .. 64, got ", spec.slot_shift));
  if (spec.slot_shift == 64 && !spec.slots.empty())
    refuse(spec, "slots need a slot_shift below 64: an id's slot is id >> slot_shift");
  std::unordered_set<std::uint64_t> seen;
  for (const SlotSettings& slot : spec.slots) {
    if (!seen.insert(slot.slot).second) refuse(spec, str("slot ", slot.slot, " is there twice"));
    if (spec.slot_shift > 0 && slot.slot >> (64 - spec.slot_shift) != 0)
      refuse(spec, str("slot ", slot.slot, " is no id >> ", spec.slot_shift));
    if (!(std::isfinite(slot.lr_scale) && slot.lr_scale >= 0))
      refuse(spec, str("slot ", slot.slot, ": lr_scale must be finite and not negative, got ",
                       slot.lr_scale));
    require_valid_entry(spec, slot.entry);
  }
}

void require_valid_dense(const TableSpec& spec) {
  if (spec.count < 1) refuse(spec, "a dense table needs at least one float");
  if (spec.count > limits::kPsPayloadBytes / sizeof(float) * limits::kPsShards)
    refuse(spec, str(spec.count, " floats are too many"));
  // Every field of the state is cut along with the weights.
  kernels::StateField fields[4];
  const std::size_t fields_used = kernels::state_fields(spec.rule, 2, fields);
  for (std::size_t i = 0; i < fields_used; ++i) {
    if (fields[i].floats != 2)
      refuse(spec, str(kernels::name(spec.rule.kind), " keeps one number a row; a dense table ",
                       "has no rows. Use the rule without \"row-wise\"."));
  }
}

}  // namespace

std::uint64_t table_id(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a.
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ull;
  }
  return mix_id(hash);  // Short names differ in few bits of FNV's upper half.
}

void require_valid(const TableSpec& spec) {
  if (spec.name.empty()) throw InvalidArgument("a table needs a name");
  if (spec.name.size() > kNameBytes)
    throw InvalidArgument(str("a table's name has at most ", kNameBytes, " bytes, this one has ",
                              spec.name.size(), ": ", spec.name.substr(0, 40), "..."));
  try {
    kernels::require_valid(spec.rule);
  } catch (const InvalidArgument& error) {
    refuse(spec, error.what());
  }
  require_valid_init(spec);
  if (spec.kind == TableKind::kSparse) {
    require_valid_sparse(spec);
  } else {
    require_valid_dense(spec);
  }
}

}  // namespace gradring::ps
