// Distinct: a list of ids that has some of them many times. A client asks each shard for each id
// once and gives the row to every position that wants it; it adds up an id's gradients before it
// sends them. A server adds up what the workers of a round gave. Belongs to one call; building it
// uses memory of its thread, which remembers what it found of its last list, unless that is long: a
// push mostly has the ids of the pull before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gradring::ps {

class Distinct {
 public:
  // Fewer than 2^32 ids. `is_promised`: the caller says that no id is there twice.
  Distinct(std::span<const std::uint64_t> ids, std::uint32_t shards, bool is_promised = false);
  Distinct(Distinct&&) = default;
  Distinct& operator=(Distinct&&) = default;

  // Every id once: those of shard 0, then of shard 1, ...; each shard's in the order of their first
  // occurrence. While is_identity() they are the list that was given, which must live on.
  std::span<const std::uint64_t> ids() const { return ids_; }
  std::size_t begin_of(std::uint32_t shard) const { return found_->begins[shard]; }
  std::size_t end_of(std::uint32_t shard) const { return found_->begins[shard + 1]; }
  // ids() is the list that was given: rows are where they belong already.
  bool is_identity() const { return found_->is_identity; }
  // Where an id of ids() occurs, in growing order. Not while is_identity().
  std::span<const std::uint32_t> positions(std::size_t place) const {
    const std::size_t start = found_->starts[place];
    return std::span(found_->positions).subspan(start, found_->starts[place + 1] - start);
  }

  // `rows` are those of ids()[first .. first+count), `dim` floats each; each is copied to the
  // positions of its id in `out`, which has as many rows as there were ids.
  void fan_out(std::size_t first, std::size_t count, const float* rows, std::size_t dim,
               float* out) const;
  // The inverse: sums[i] = the sum of `rows` (one for each position) over the positions of
  // ids()[first + i], in their order, each sum rounded to float32. What occurs once is copied.
  void sum(std::size_t first, std::size_t count, const float* rows, std::size_t dim,
           float* sums) const;

 private:
  // Never changed once it is there: calls of several threads may share it.
  struct Found {
    std::vector<std::uint64_t> list;       // As it was given, if it is remembered.
    std::vector<std::uint64_t> ids;        // Each once, by shard. Not while is_identity.
    std::vector<std::size_t> begins;       // Of each shard, and the end.
    std::vector<std::uint32_t> starts;     // Of each place's positions, and the end.
    std::vector<std::uint32_t> positions;  // Neither of them while is_identity.
    bool is_identity = false;

    bool is_of(std::span<const std::uint64_t> other, std::uint32_t shards) const;
    void order_by_shard(std::span<const std::uint64_t> distinct, std::uint32_t shards,
                        std::vector<std::uint32_t>& place_of);
  };
  static Found find(std::span<const std::uint64_t> ids, std::uint32_t shards, bool is_promised);

  std::shared_ptr<const Found> found_;
  std::span<const std::uint64_t> ids_;  // The list that was given, or those found.
};

}  // namespace gradring::ps
