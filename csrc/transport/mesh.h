// Mesh: the links of one communicator's lane, made when first needed. The lower rank of a pair
// connects, the higher takes what the door let in. Used by whichever thread drives the lane, under
// the lane's lock.
#pragma once

#include <memory>
#include <vector>

#include "transport/world.h"

namespace gradring::transport {

// What a run needs of its links; the simulator has its own.
class Peers {
 public:
  virtual ~Peers() = default;
  // The link to a group rank, or nullptr while the other side has yet to connect. Throws PeerLost.
  virtual Link* link(Rank peer) = 0;
};

class Mesh final : public Peers {
 public:
  Mesh(std::shared_ptr<World> world, std::shared_ptr<Group> group, std::uint8_t lane);

  Link* link(Rank peer) override;
  // Of the operation that drives now: no new connection is waited for any longer.
  void set_timeout(Millis timeout) { timeout_ = timeout; }
  // The link if there is one, or if the other side has connected; never connects.
  Link* accepted(Rank peer);
  // The links there are already, by group rank; never connects.
  Link* existing(Rank peer) const { return links_[static_cast<std::size_t>(peer)].get(); }
  // This rank leaves: whoever waits for it here learns so.
  void hang_up();

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Group> group_;
  std::uint8_t lane_;
  Millis timeout_ = kForGood;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace gradring::transport
