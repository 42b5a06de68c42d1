// FlatDirect: all_gathers and broadcasts of flat.h without the slots: every rank copies what it
// lacks out of the others' own vectors (transport/links/peer_memory.h). One copy where slots take
// two, and no cache line that two cores write in turn. Only where every rank can read every other
// one, which all of them know from the posts; the first time, nobody knows yet. What cannot be read
// after all (a device's memory mapped into a process, say) goes through the slots, for all ranks
// and from then on. Where ranks share processors, only what is long: the slots let one be ahead of
// the others there. Belongs to one Flat, on its driving thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/flat/flat_shape.h"
#include "collectives/flat/flat_side.h"
#include "transport/links/peer_memory.h"

namespace gradring::collectives {

class FlatDirect {
 public:
  // What a long operation's post carries.
  struct Offer {
    std::uint64_t address = 0;  // Of the rank's input.
    std::uint64_t is_made = 0;  // 0: the others are not to read, or this rank cannot read them.
  };

  explicit FlatDirect(FlatSide& side);  // Shows this rank's card to the others.

  // Whether operations of this kind and length may be faster this way.
  bool is_for(const Request& request, std::size_t bytes) const;

  Offer offer(const std::byte* input) const;
  // After all posts of an operation that this is for have come: whether all ranks can read. Every
  // rank gets the same answer.
  bool is_agreed(std::uint32_t round);
  // Whether the next one may well be, even a short one. The same on every rank.
  bool is_likely() const { return !side_.memory.shares_processors() && (tries_ < 2 || works_); }

  // This rank's own part: allowed before the others' calls have been compared.
  void begin(const FlatShape& shape, const Request& request, const std::byte* input,
             std::byte* output) const;
  // The others' parts. False, on all ranks, if one of them could not read: then the output is not
  // whole, and the slots must do. Throws what FlatSide::wait throws.
  bool finish(const FlatShape& shape, const Request& request, std::uint32_t round,
              std::byte* output, transport::Idle& idle);

  // This rank's call ends with an error: its input may change from now on.
  void withdraw() const;

 private:
  Offer offer_of(Rank peer, std::uint32_t round) const;
  FlatPart part(const FlatShape& shape, const Request& request, Rank of) const;
  bool read(FlatPart part, Rank from, std::uint32_t round, std::byte* output,
            transport::Idle& idle) const;
  void throw_if_withdrawn(Rank peer, transport::Idle& idle) const;

  void open_peers();

  FlatSide& side_;
  transport::MemoryToken token_;
  // By rank, this one's is none. Empty until the others' cards were read, and again once one of
  // them could not be read.
  std::vector<std::optional<transport::PeerMemory>> peers_;
  int tries_ = 0;       // Operations so far, up to 2.
  bool works_ = false;  // The last one could be read by all.
};

}  // namespace gradring::collectives
