// Pull and push of a dense table: one request to every shard that has a part of it, straight from
// and into the caller's array.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "ps/client/call.h"
#include "ps/client/remote_table.h"
#include "ps/tables/partition.h"

namespace gradring::ps {

class PullDenseCall final : public Call {
 public:
  // `out` has the table's count of floats.
  PullDenseCall(std::shared_ptr<RemoteTable> table, float* out, wire::RowCodec codec,
                const std::optional<wire::Gate>& gate);

  std::span<std::byte> destination(std::size_t part, const wire::PsHeader& answer) override;
  void take(std::size_t part, const wire::PsHeader& answer,
            std::span<const std::byte> payload) override;
  bool may_wait() const override { return has_gate_; }

  // Pushes that are in what came, of the shard that has fewest.
  std::uint64_t version() const { return version_; }

 private:
  std::shared_ptr<RemoteTable> table_;
  float* out_;
  wire::RowCodec codec_;
  bool has_gate_;
  std::uint64_t version_ = ~std::uint64_t{0};
};

class PushDenseCall final : public Call {
 public:
  // `rows_after`: where the table goes after the update; null: not asked for.
  struct Arrays {
    const float* gradient = nullptr;
    float* rows_after = nullptr;
    std::vector<std::uint64_t> seen;  // As PushItem's.
  };
  PushDenseCall(std::shared_ptr<RemoteTable> table, const Arrays& arrays, wire::RowCodec codec,
                const std::optional<wire::Round>& round);

  Body body(std::size_t part) override;
  void release(std::size_t part) override;
  void take(std::size_t part, const wire::PsHeader& answer,
            std::span<const std::byte> payload) override;

  const PushReport& report() const { return report_; }

 private:
  std::shared_ptr<RemoteTable> table_;
  Arrays arrays_;
  wire::RowCodec codec_;
  // Every shard judges its own part: where one must refuse, all do, or the table is half updated.
  bool is_refused_ = false;
  std::vector<Bytes> encoded_;  // By part, while it is under way.
  PushReport report_;
};

}  // namespace gradring::ps
