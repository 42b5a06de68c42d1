// PsLedger: every push of integers that anybody made, and what became of it as far as its client
// knows. Says between which bounds a value may lie, and at the end what every value must be.
//
// Every part of a push adds one to a row of its own, its receipt: what the receipt says, the part
// did, so that nothing has to be guessed. A part for the dense table has a digit of one of its
// floats for a receipt.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/ps/client.h"

namespace gradring::sim {

inline const std::string kCounts = "counts";  // A column for every client.
inline const std::string kDense = "dense";
inline constexpr std::uint32_t kDenseFloats = 32;  // On every shard.

struct CountedPart {
  std::uint32_t shard = 0;
  std::uint64_t receipt = 0;  // An id; or where in the dense table.
  std::vector<std::uint64_t> ids;
  float value = 0;
  bool is_dense = false;
};

struct CountedPush {
  enum class Fate : std::uint8_t { kPending, kDone, kUnknown };
  std::uint32_t client = 0;
  std::uint64_t process = 0;
  std::vector<CountedPart> parts;
  CallPtr call;
  Fate fate = Fate::kPending;
  bool was_cut_off = false;  // Its process ended before it knew.
};

struct CountBounds {
  float least = 0;
  float most = 0;
};

class PsLedger {
 public:
  explicit PsLedger(const PsScenario& scenario) : scenario_(scenario) {}

  // A push of `value` to `ids` in the client's column, and to receipts; the requests to send.
  std::vector<Addressed> write_push(const PsClient& client, const std::vector<std::uint64_t>& ids,
                                    float value, Dice& dice);
  // The last one written was sent as this call.
  void note_sent(const CallPtr& call) { pushes_.back().call = call; }
  // Looks which calls are over.
  void settle();
  void note_process_ended(std::uint64_t process);

  // What a client may see in its own column: at least what this process knows to have been
  // submitted before, at most all that was ever submitted.
  CountBounds own(const PsClient& client, std::uint64_t id) const;
  float most(std::uint32_t client, std::uint64_t id) const;
  std::size_t size() const { return pushes_.size(); }
  std::size_t dense_parts() const;
  const std::vector<CountedPush>& pushes() const { return pushes_; }

  // The same of the dense table's floats, which are numbers of many digits.
  std::vector<float> own_dense(const PsClient& client) const;
  std::vector<float> most_dense() const;
  // Whether no digit of `more` is below that of `less`.
  static bool covers(float more, float less);

  struct Reader {
    std::function<std::vector<float>(std::uint64_t id)> row;  // Of kCounts.
    std::vector<float> dense;                                 // All of kDense.
    float times(const CountedPart& part, std::uint32_t client) const;
  };
  // The final state: every acknowledged part once, every other at most once, and nothing else.
  std::string check_end(const Reader& read) const;
  // A checkpoint: the pushes that were done before it began, and no part without the others.
  // `began`: how many pushes were done by then. Values are the sum of what is in it.
  // `unsure`: clients that may have been given up; of what they had under way parts may be missing.
  std::string check_cut(const std::vector<std::size_t>& done_before, const Reader& read,
                        const std::set<std::uint32_t>& unsure) const;
  std::vector<std::size_t> done() const;

 private:
  bool is_certain(const CountedPush& push, const PsClient& client) const;
  void write_dense(CountedPush& push, std::vector<Addressed>& requests, Dice& dice) const;
  std::string check_sums(const Reader& read, const std::vector<std::vector<bool>>& is_in) const;

  const PsScenario& scenario_;
  std::vector<CountedPush> pushes_;
  std::uint64_t next_receipt_ = 1'000'000;
};

}  // namespace gradring::sim
