#include "ps/tables/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <unordered_set>

#include "base/config.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "ps/tables/partition.h"

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
  // sqrt(-2 ln 2^-32) is the largest draw.
  constexpr float kLargestDraw = 6.67f;
  if (kind == InitKind::kNormal && !std::isfinite(std::abs(a) + kLargestDraw * b))
    refuse(spec, str("a normal initializer of mean ", a, " and deviation ", b,
                     ": not all that it draws would be float32"));
}

// On its own, and with the learning rate of each slot.
void require_valid_rule(const TableSpec& spec, const kernels::Rule& rule) {
  try {
    kernels::require_valid(rule);
    kernels::require_float32(rule);
  } catch (const InvalidArgument& error) {
    refuse(spec, error.what());
  }
  for (const SlotSettings& slot : spec.slots) {
    kernels::Rule scaled = rule;
    scaled.lr *= slot.lr_scale;
    try {
      kernels::require_valid(scaled);
      kernels::require_float32(scaled);
    } catch (const InvalidArgument& error) {
      refuse(spec, str("slot ", slot.slot, " with lr_scale ", slot.lr_scale, ": ", error.what()));
    }
  }
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

struct Member {
  const char* name;
  double kernels::Rule::* value;
};
constexpr Member kRuleMembers[] = {
    {"lr", &kernels::Rule::lr},
    {"momentum", &kernels::Rule::momentum},
    {"dampening", &kernels::Rule::dampening},
    {"weight_decay", &kernels::Rule::weight_decay},
    {"lr_decay", &kernels::Rule::lr_decay},
    {"initial_accumulator_value", &kernels::Rule::initial_accumulator},
    {"alpha", &kernels::Rule::alpha},
    {"beta1", &kernels::Rule::beta1},
    {"beta2", &kernels::Rule::beta2},
    {"eps", &kernels::Rule::eps},
    {"l1", &kernels::Rule::l1},
    {"l2", &kernels::Rule::l2},
    {"beta", &kernels::Rule::beta},
    {"clip_value", &kernels::Rule::clip_value},
    {"clip_norm", &kernels::Rule::clip_norm},
};

// With as many digits as tell it from every other number: two that differ must not look alike.
template <typename Float>
std::string exact(Float value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string difference(const kernels::Rule& there, const kernels::Rule& here) {
  if (there.kind != here.kind)
    return str("optimizer: ", name(there.kind), " there, ", name(here.kind), " here");
  for (const auto& [text, value] : kRuleMembers)
    if (there.*value != here.*value)
      return str("optimizer: ", name(there.kind), " with ", text, "=", exact(there.*value),
                 " there, ", exact(here.*value), " here");
  return str("optimizer: ", name(there.kind),
             there.nesterov || there.centered ? " with" : " without",
             there.nesterov != here.nesterov ? " nesterov" : " centered", " there");
}

std::string text_of(const Initializer& init) {
  const std::string a = exact(init.a);
  switch (init.kind) {
    case InitKind::kConstant: return a;
    case InitKind::kUniform: return str("uniform from ", a, " to ", exact(init.b));
    case InitKind::kNormal: return str("normal of mean ", a, " and deviation ", exact(init.b));
  }
  return str("kind ", static_cast<int>(init.kind));
}

std::string text_of(const Entry& entry) {
  return str("count ", entry.count, ", p ", exact(entry.probability));
}

std::string text_of(const SlotSettings& slot) {
  return str("lr_scale ", exact(slot.lr_scale), ", entry ", text_of(slot.entry), ", expire_after ",
             slot.unseen_ticks);
}

// The names of its state's fields, for people and to compare.
std::string state_of(const kernels::Rule& rule) {
  kernels::StateField fields[kernels::kMaxStateFields];
  const std::size_t count = kernels::state_fields(rule, 2, fields);
  std::string names;
  for (std::size_t i = 0; i < count; ++i) names += str(i > 0 ? ", " : "", fields[i].name);
  return names.empty() ? "nothing" : names;
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

std::uint32_t layout_of(const TableSpec& spec) {
  const bool is_dense = spec.kind == TableKind::kDense;
  const std::string text =
      str(static_cast<int>(spec.kind), " ", spec.dim, " ", spec.count, " ", name(spec.rule.kind),
          " ", state_of(spec.rule), " ", is_dense && spec.rule.clip_norm > 0);
  return std::max<std::uint32_t>(1, crc32c(std::as_bytes(std::span(text))));
}

void require_valid(const TableSpec& spec) {
  if (spec.name.empty()) throw InvalidArgument("a table needs a name");
  if (spec.name.size() > kNameBytes)
    throw InvalidArgument(str("a table's name has at most ", kNameBytes, " bytes, this one has ",
                              spec.name.size(), ": ", spec.name.substr(0, 40), "..."));
  require_valid_init(spec);
  if (spec.kind == TableKind::kSparse) require_valid_sparse(spec);
  require_valid_rule(spec, spec.rule);
  if (spec.kind == TableKind::kDense) require_valid_dense(spec);
}

void require_successor(const TableSpec& spec, const kernels::Rule& rule) {
  require_valid_rule(spec, rule);
  if (rule.kind != spec.rule.kind)
    refuse(spec, str("its rule is ", name(spec.rule.kind), " and stays so, ", name(rule.kind),
                     " cannot follow; other settings of it can"));
  if (spec.kind == TableKind::kDense && (rule.clip_norm > 0) != (spec.rule.clip_norm > 0))
    refuse(spec,
           str("a dense table lies where clip_norm is in its rule, or not, from the beginning; ",
               "it was made ", spec.rule.clip_norm > 0 ? "with" : "without",
               " it. Make another table"));
  if (state_of(rule) != state_of(spec.rule))
    refuse(spec, str("these settings of ", name(rule.kind), " keep ", state_of(rule),
                     " beside the weights, the table ", state_of(spec.rule)));
}

DenseRange dense_range(const TableSpec& spec, std::uint32_t shard, std::uint32_t shards) {
  if (spec.rule.clip_norm <= 0) return dense_range(spec.count, shard, shards);
  const bool is_its_own = shard == shard_of(table_id(spec.name), shards);
  return {0, is_its_own ? spec.count : 0};
}

std::string difference(const TableSpec& there, const TableSpec& here) {
  const auto both = [](const char* what, const auto& a, const auto& b) {
    return str(what, ": ", a, " there, ", b, " here");
  };
  const auto kind = [](const TableSpec& spec) {
    return spec.kind == TableKind::kSparse ? "sparse" : "dense";
  };
  if (there.kind != here.kind) return both("kind", kind(there), kind(here));
  if (there.dim != here.dim) return both("dim", there.dim, here.dim);
  if (there.count != here.count) return both("number of floats", there.count, here.count);
  if (there.rule != here.rule) return difference(there.rule, here.rule);
  if (there.init != here.init)
    return both("initial values", text_of(there.init), text_of(here.init));
  if (there.seed != here.seed) return both("seed", there.seed, here.seed);
  if (there.entry != here.entry) return both("entry", text_of(there.entry), text_of(here.entry));
  if (there.unseen_ticks != here.unseen_ticks)
    return both("expire_after", there.unseen_ticks, here.unseen_ticks);
  if (there.score_decay != here.score_decay)
    return both("score_decay", exact(there.score_decay), exact(here.score_decay));
  if (there.slots.size() != here.slots.size())
    return both("number of slots with settings", there.slots.size(), here.slots.size());
  const auto [theirs, ours] =
      std::mismatch(there.slots.begin(), there.slots.end(), here.slots.begin());
  if (theirs == there.slots.end()) return both("slot_shift", there.slot_shift, here.slot_shift);
  if (theirs->slot != ours->slot) return both("slots with settings", theirs->slot, ours->slot);
  return str("slot ", ours->slot, ": ", text_of(*theirs), " there; ", text_of(*ours), " here");
}

}  // namespace gradring::ps
