// Pulls and pushes of rows, of one or several tables in one round trip. A call asks for each
// distinct id once: gradients of one id are added up before they are sent, and a row that came goes
// to every place that wants it. Parts are small, so that client, wire and tables work at the same
// time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ps/client/call.h"
#include "ps/client/remote_table.h"
#include "ps/tables/merge.h"

namespace gradring::ps {

struct PullItem {
  std::shared_ptr<RemoteTable> table;
  std::span<const std::uint64_t> ids;
  float* out = nullptr;  // ids.size() x dim
};
struct PullOptions {
  wire::RowCodec codec = wire::RowCodec::kFloat32;
  std::optional<wire::Gate> gate;
};

class PullCall final : public Call {
 public:
  PullCall(std::vector<PullItem> items, const PullOptions& options);

  Body body(std::size_t part) override;
  std::span<std::byte> destination(std::size_t part, const wire::PsHeader& answer) override;
  void take(std::size_t part, const wire::PsHeader& answer,
            std::span<const std::byte> payload) override;
  bool may_wait() const override { return options_.gate.has_value(); }

  // For each item by shard: pushes to its table that are in what has come from there.
  const std::vector<std::vector<std::uint64_t>>& seen() const { return seen_; }

 private:
  struct Place {  // Of a part: distinct rows [first, first + count) of an item.
    std::size_t item = 0;
    std::size_t first = 0;
    std::size_t count = 0;
  };
  std::vector<PullItem> items_;
  PullOptions options_;
  std::vector<Distinct> distinct_;
  std::vector<Place> places_;
  std::vector<std::vector<std::uint64_t>> seen_;
  Floats scratch_;
};

struct PushItem {
  std::shared_ptr<RemoteTable> table;
  std::span<const std::uint64_t> ids;
  const float* gradients = nullptr;  // ids.size() x dim
  float* rows_after = nullptr;       // The same shape: the rows after the update; null: not asked.
  std::vector<std::uint64_t> seen;   // By shard, what the gradients were computed on; empty: the
                                     // last pull.
};
struct PushOptions {
  wire::RowCodec codec = wire::RowCodec::kFloat32;
  std::optional<wire::Round> round;
  bool ids_are_distinct = false;  // Of each item; promised by the caller.
};

class PushCall final : public Call {
 public:
  PushCall(std::vector<PushItem> items, const PushOptions& options);

  Body body(std::size_t part) override;
  void sent(std::size_t part) override;
  void release(std::size_t part) override;
  void refused(std::size_t part) override;
  void take(std::size_t part, const wire::PsHeader& answer,
            std::span<const std::byte> payload) override;

  const PushReport& report() const { return report_; }

 private:
  struct Place {
    std::size_t item = 0;
    std::size_t first = 0;
    std::size_t count = 0;
    Bytes rows;  // While it is under way.
    // Of rows with a codec, until its fate is known: the residuals that it took along, and behind
    // them those that it leaves if it is done. One whose fate is never known leaves none.
    Floats residuals;
  };
  std::span<const std::uint64_t> ids_of(const Place& place) const;
  void encode(Place& place, const float* sums);
  template <typename IsDone>  // (row of the part)
  void settle_residuals(Place& place, IsDone&& is_done);
  void add_part(std::size_t item, std::uint32_t shard, std::size_t first, std::size_t count,
                std::uint64_t nth, bool is_last);
  std::vector<PushItem> items_;
  PushOptions options_;
  std::vector<Distinct> distinct_;
  std::vector<Place> places_;
  std::vector<Bytes> spare_;
  Floats scratch_;
  PushReport report_;
};

}  // namespace gradring::ps
