// PlainCall: requests whose answers are kept as they come, for everything besides pulls and pushes:
// tables, clocks, reading and writing of whole rows, checkpoints.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ps/client/call.h"
#include "ps/client/remote_table.h"
#include "ps/protocol/payloads.h"
#include "ps/tables/sparse_table.h"

namespace gradring::ps {

class PlainCall final : public Call {
 public:
  struct Answered {
    wire::PsHeader header;
    Bytes payload;
  };

  explicit PlainCall(std::string what, bool may_wait = false)
      : Call(std::move(what)), may_wait_(may_wait) {}

  // A request; `head` is its payload after the tail.
  void add(std::uint32_t shard, const wire::PsHeader& header, Bytes head = {},
           std::uint64_t rows = 0);
  // The same to every one of `shards` shards.
  void add_to_all(std::uint32_t shards, const wire::PsHeader& header, const Bytes& head = {});

  void take(std::size_t part, const wire::PsHeader& answer,
            std::span<const std::byte> payload) override;
  bool may_wait() const override { return may_wait_; }
  bool ends_on_time() const override { return may_wait_; }

  // By part, once done.
  const std::vector<Answered>& answers() const { return answers_; }

 private:
  bool may_wait_;
  std::vector<Answered> answers_;
};

// Whole rows for their shards, in parts. `floats` has `row_floats` for each of them. `steps`: told
// to every shard, if there are any.
void add_writes(PlainCall& call, const RemoteTable& table, std::span<const RowMeta> metas,
                std::span<const float> floats, std::optional<std::uint64_t> steps = std::nullopt);

}  // namespace gradring::ps
