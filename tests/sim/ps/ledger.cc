#include "sim/ps/ledger.h"

#include <algorithm>

#include "base/text.h"
#include "ps/tables/partition.h"

namespace gradring::sim {
namespace {

// A float of the dense table has a digit for each of the pushes that share it, so that one that is
// done twice is seen, too. All of it is exact in float32, and one digit is in bfloat16.
constexpr std::uint32_t kBase = 8;
constexpr std::uint32_t kDigits = 8;

std::uint32_t digit_of(float number, float unit) {
  return static_cast<std::uint32_t>(number / unit) % kBase;
}

std::string describe(const CountedPush& push, std::size_t number) {
  std::string text =
      str("push ", number, " of client ", push.client, " (process ", push.process, ", ",
          push.fate == CountedPush::Fate::kDone ? "acknowledged" : "unknown", "), parts on shards");
  for (const CountedPart& part : push.parts) text += str(" ", part.shard);
  return text;
}

}  // namespace

std::vector<Addressed> PsLedger::write_push(const PsClient& client,
                                            const std::vector<std::uint64_t>& ids, float value,
                                            Dice& dice) {
  CountedPush push;
  push.client = client.number();
  push.process = client.process();
  std::vector<Addressed> requests;
  for (std::uint32_t shard = 0; shard < client.shards(); ++shard) {
    std::vector<std::uint64_t> ours;
    for (const std::uint64_t id : ids)
      if (ps::shard_of(id, client.shards()) == shard) ours.push_back(id);
    while (!ours.empty()) {
      // Sometimes in two parts.
      CountedPart part;
      part.shard = shard;
      part.value = value;
      const std::size_t count = dice.percent(30) ? 1 + dice.below(ours.size()) : ours.size();
      part.ids.assign(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(count));
      ours.erase(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(count));
      do {
        part.receipt = next_receipt_++;
      } while (ps::shard_of(part.receipt, client.shards()) != shard);
      testing::Ids sent = part.ids;
      sent.push_back(part.receipt);
      testing::Values rows(sent.size() * scenario_.clients, 0);
      for (std::size_t i = 0; i < sent.size(); ++i)
        rows[i * scenario_.clients + push.client] = sent[i] == part.receipt ? 1 : value;
      requests.push_back(
          {shard, testing::push(kCounts, sent, rows, {.is_last_part = ours.empty()})});
      push.parts.push_back(std::move(part));
    }
  }
  if (dice.percent(40)) write_dense(push, requests, dice);
  pushes_.push_back(std::move(push));
  return requests;
}

void PsLedger::write_dense(CountedPush& push, std::vector<Addressed>& requests, Dice& dice) const {
  const std::size_t number = pushes_.size();
  if (number >= std::size_t{kDenseFloats} * kDigits) return;
  CountedPart part;
  part.is_dense = true;
  part.value = 1;
  for (std::size_t digit = number / kDenseFloats; digit > 0; --digit) part.value *= kBase;
  testing::Values floats(kDenseFloats, 0);
  floats[number % kDenseFloats] = part.value;
  const auto codec = dice.percent(50) ? wire::RowCodec::kBFloat16 : wire::RowCodec::kFloat32;
  for (part.shard = 0; part.shard < scenario_.shards(); ++part.shard) {
    part.receipt = part.shard * kDenseFloats + number % kDenseFloats;
    requests.push_back({part.shard, testing::push_dense(kDense, floats, {.codec = codec})});
    push.parts.push_back(part);
  }
}

void PsLedger::settle() {
  for (CountedPush& push : pushes_) {
    if (push.fate != CountedPush::Fate::kPending || !push.call || !push.call->is_done()) continue;
    push.fate = push.call->failure() ? CountedPush::Fate::kUnknown : CountedPush::Fate::kDone;
  }
}

void PsLedger::note_process_ended(std::uint64_t process) {
  settle();
  for (CountedPush& push : pushes_) {
    if (push.process != process || push.fate != CountedPush::Fate::kPending) continue;
    push.fate = CountedPush::Fate::kUnknown;
    push.was_cut_off = true;
    push.call.reset();
  }
}

// Without a log a later process does not hear that a server has lost what it had.
bool PsLedger::is_certain(const CountedPush& push, const PsClient& client) const {
  const bool is_own = push.process == client.process();
  return (push.fate == CountedPush::Fate::kDone && (is_own || scenario_.has_log)) ||
         (push.fate == CountedPush::Fate::kPending && is_own);
}

CountBounds PsLedger::own(const PsClient& client, std::uint64_t id) const {
  CountBounds bounds;
  for (const CountedPush& push : pushes_) {
    if (push.client != client.number()) continue;
    for (const CountedPart& part : push.parts) {
      if (std::find(part.ids.begin(), part.ids.end(), id) == part.ids.end()) continue;
      bounds.most += part.value;
      if (is_certain(push, client)) bounds.least += part.value;
    }
  }
  return bounds;
}

float PsLedger::most(std::uint32_t client, std::uint64_t id) const {
  float sum = 0;
  for (const CountedPush& push : pushes_) {
    if (push.client != client) continue;
    for (const CountedPart& part : push.parts)
      if (std::find(part.ids.begin(), part.ids.end(), id) != part.ids.end()) sum += part.value;
  }
  return sum;
}

std::vector<float> PsLedger::own_dense(const PsClient& client) const {
  std::vector<float> sums(std::size_t{kDenseFloats} * scenario_.shards());
  for (const CountedPush& push : pushes_) {
    if (push.client != client.number() || !is_certain(push, client)) continue;
    for (const CountedPart& part : push.parts)
      if (part.is_dense) sums[part.receipt] += part.value;
  }
  return sums;
}

std::vector<float> PsLedger::most_dense() const {
  std::vector<float> sums(std::size_t{kDenseFloats} * scenario_.shards());
  for (const CountedPush& push : pushes_)
    for (const CountedPart& part : push.parts)
      if (part.is_dense) sums[part.receipt] += part.value;
  return sums;
}

bool PsLedger::covers(float more, float less) {
  float unit = 1;
  for (std::uint32_t digit = 0; digit < kDigits; ++digit, unit *= kBase)
    if (digit_of(more, unit) < digit_of(less, unit)) return false;
  return true;
}

float PsLedger::Reader::times(const CountedPart& part, std::uint32_t client) const {
  if (!part.is_dense) return row(part.receipt)[client];
  return static_cast<float>(digit_of(dense[part.receipt], part.value));
}

std::size_t PsLedger::dense_parts() const {
  std::size_t count = 0;
  for (const CountedPush& push : pushes_)
    count += static_cast<std::size_t>(std::count_if(
        push.parts.begin(), push.parts.end(), [](const auto& part) { return part.is_dense; }));
  return count;
}

std::vector<std::size_t> PsLedger::done() const {
  std::vector<std::size_t> found;
  for (std::size_t at = 0; at < pushes_.size(); ++at)
    if (pushes_[at].fate == CountedPush::Fate::kDone) found.push_back(at);
  return found;
}

std::string PsLedger::check_end(const Reader& read) const {
  std::vector<std::vector<bool>> is_in;
  for (std::size_t at = 0; at < pushes_.size(); ++at) {
    const CountedPush& push = pushes_[at];
    is_in.emplace_back();
    for (const CountedPart& part : push.parts) {
      const float times = read.times(part, push.client);
      if (times > 1 || (times < 1 && push.fate == CountedPush::Fate::kDone))
        return str(describe(push, at), ": its part on shard ", part.shard, " was done ", times,
                   " times");
      is_in.back().push_back(times == 1);
    }
  }
  return check_sums(read, is_in);
}

std::string PsLedger::check_cut(const std::vector<std::size_t>& done_before, const Reader& read,
                                const std::set<std::uint32_t>& unsure) const {
  std::vector<std::vector<bool>> is_in;
  for (std::size_t at = 0; at < pushes_.size(); ++at) {
    const CountedPush& push = pushes_[at];
    std::vector<bool> parts;
    for (const CountedPart& part : push.parts) parts.push_back(read.times(part, push.client) > 0);
    const auto in = std::count(parts.begin(), parts.end(), true);
    const bool is_whole = in == 0 || in == static_cast<std::ptrdiff_t>(parts.size());
    // Of a push that was given up, parts may be missing for ever.
    const bool may_lack_parts =
        push.fate == CountedPush::Fate::kUnknown ||
        (push.fate == CountedPush::Fate::kPending && unsure.contains(push.client));
    if (!is_whole && !may_lack_parts)
      return str(describe(push, at), ": ", in, " of its ", parts.size(),
                 " parts are in the checkpoint");
    if (in == 0 && std::binary_search(done_before.begin(), done_before.end(), at))
      return str(describe(push, at), " was done before the checkpoint began and is not in it");
    is_in.push_back(std::move(parts));
  }
  return check_sums(read, is_in);
}

std::string PsLedger::check_sums(const Reader& read,
                                 const std::vector<std::vector<bool>>& is_in) const {
  std::map<std::uint64_t, std::vector<float>> sums;
  std::vector<float> dense(read.dense.size());
  for (std::size_t at = 0; at < pushes_.size(); ++at)
    for (std::size_t i = 0; i < pushes_[at].parts.size(); ++i) {
      const CountedPart& part = pushes_[at].parts[i];
      if (part.is_dense && is_in[at][i]) dense[part.receipt] += part.value;
      for (const std::uint64_t id : part.ids) {
        std::vector<float>& row = sums[id];
        row.resize(scenario_.clients);
        if (is_in[at][i]) row[pushes_[at].client] += part.value;
      }
    }
  for (std::size_t at = 0; at < dense.size(); ++at)
    if (read.dense[at] != dense[at])
      return str("float ", at, " of the dense table is ", read.dense[at], " where its pushes make ",
                 dense[at]);
  for (const auto& [id, row] : sums) {
    const std::vector<float> there = read.row(id);
    for (std::size_t client = 0; client < row.size(); ++client)
      if (there[client] != row[client])
        return str("row ", id, " has ", there[client], " of client ", client,
                   " where its pushes make ", row[client]);
  }
  return "";
}

}  // namespace gradring::sim
