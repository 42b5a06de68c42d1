// ChangedCall: asks every shard which rows others have changed since a stamp. A page of answers is
// received straight into the caller's memory, which may serve again for the next page: rows come by
// the ten thousands, and fresh memory for each would cost more than reading them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ps/client/call.h"
#include "ps/client/remote_table.h"

namespace gradring::ps {

class ChangedCall final : public Call {
 public:
  // What one shard has said: `count` ids, then as many float32 rows, at the beginning of its share.
  struct Page {
    std::uint64_t count = 0;
    std::uint64_t since = 0;  // To ask it with next time.
    bool more = false;
    std::size_t bytes = 0;  // If they are more than the share, they were dropped.
  };

  // `room` is cut into equal shares, one for each shard, of whole 8 bytes; half of one is asked
  // for, since a page ends with all rows of a change. It must stay until the call is done.
  ChangedCall(std::shared_ptr<RemoteTable> table, std::span<const std::uint64_t> since,
              std::span<std::byte> room);

  std::span<std::byte> destination(std::size_t part, const wire::PsHeader& answer) override;
  void take(std::size_t part, const wire::PsHeader& answer,
            std::span<const std::byte> payload) override;

  // The share that all pages of this call would have had room in; 0: they had.
  std::size_t missing_share_bytes() const;
  // By shard, once done.
  const std::vector<Page>& pages() const { return pages_; }

 private:
  std::size_t row_bytes() const;

  std::shared_ptr<RemoteTable> table_;
  std::span<std::byte> room_;
  std::size_t share_bytes_;
  std::vector<Page> pages_;
};

}  // namespace gradring::ps
