//! One direction of a link.

use crate::{Chance, Delay, Micros, Rng};
use serde::{Deserialize, Serialize};

/// What one direction of a link does to packets. The default is a perfect link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkModel {
    /// One-way delay.
    pub delay: Delay,
    /// Loss of each packet for itself.
    pub loss: Chance,
    /// Loss in bursts, beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bursts: Option<Bursts>,
    /// Chance that a packet that arrives, arrives twice.
    pub duplicate: Chance,
    /// Chance that a packet is held back, and overtaken by later ones.
    pub reorder: Chance,
    /// How long such a packet is held back, at most.
    pub reorder_by: Micros,
    /// Chance that a packet arrives with bits flipped.
    pub corrupt: Chance,
    /// Packets larger than this many bytes vanish; 0 for no limit.
    pub mtu: usize,
    /// Bytes a second; 0 for no limit.
    pub bytes_per_second: u64,
    /// With a bandwidth, packets that would wait for longer than this are lost (drop-tail);
    /// 0 for 250 ms.
    pub queue: Micros,
}

/// Gilbert-Elliott loss in continuous time: the link is good for a while, then bad for a while, both
/// exponentially distributed, whatever is sent on it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// Mean time in the good state.
    pub good: Micros,
    /// Mean time in the bad state.
    pub bad: Micros,
    /// Loss while good.
    #[serde(default)]
    pub loss_good: Chance,
    /// Loss while bad.
    #[serde(default = "always")]
    pub loss_bad: Chance,
}

const fn always() -> Chance {
    Chance::ALWAYS
}

impl Bursts {
    /// Loss in the long run.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        let (good, bad) = (self.good.seconds(), self.bad.seconds());
        (good * self.loss_good.fraction() + bad * self.loss_bad.fraction()) / (good + bad)
    }
}

/// How long a packet waits for its turn when bandwidth is limited, unless the model says otherwise.
const QUEUE_DEFAULT: Micros = Micros::from_ms(250);

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Independent loss or a burst.
    Lost,
    /// The queue was full.
    Queue,
    /// It was larger than the MTU.
    TooLarge,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does not arrive.
    Dropped(Loss),
    /// It arrives.
    Arrives {
        /// How long after it was sent.
        after: Micros,
        /// When a second copy arrives, if one does.
        again: Option<Micros>,
        /// Bits to flip in the first copy: a random number to choose them by.
        corrupt: Option<u64>,
    },
}

impl LinkModel {
    /// A link with this delay and nothing else.
    #[must_use]
    pub fn with_delay(delay: Delay) -> Self {
        Self { delay, ..Self::default() }
    }
}

/// Flips bits in one byte of a packet, chosen by `draw`, the number in [`Fate::Arrives`].
pub fn flip(packet: &mut [u8], draw: u64) {
    let mut rng = Rng::new(draw, 0);
    let at = usize::try_from(rng.below(packet.len() as u64)).unwrap_or(0);
    let mask = rng.range(1, 255).to_le_bytes()[0];
    if let Some(byte) = packet.get_mut(at) {
        *byte ^= mask;
    }
}

/// The state of one direction of a link, and its randomness.
#[derive(Clone, Debug)]
pub struct Link {
    loss: Rng,
    states: Rng,
    delays: Rng,
    twice: Rng,
    order: Rng,
    bits: Rng,
    bad: bool,
    /// When the state of the bursts changes next, once it is known.
    changes_at: Option<u64>,
    /// When the last packet in the queue is out.
    free_at: u64,
}

impl Link {
    /// The direction `name` of a seed.
    #[must_use]
    pub fn new(seed: u64, name: u64) -> Self {
        let stream = |concern| Rng::new(seed, name.wrapping_mul(16) + concern);
        Self {
            loss: stream(1),
            states: stream(2),
            delays: stream(3),
            twice: stream(4),
            order: stream(5),
            bits: stream(6),
            bad: false,
            changes_at: None,
            free_at: 0,
        }
    }

    /// What becomes of a packet of `len` bytes sent at `now`, in microseconds of a clock that does
    /// not go back.
    pub fn pass(&mut self, now: u64, len: usize, model: &LinkModel) -> Fate {
        // Each stream is drawn from for each packet, so that the fate of one does not shift that of
        // the next.
        let delay = model.delay.draw(&mut self.delays);
        let second = model.delay.draw(&mut self.twice);
        let twice = self.twice.happens(model.duplicate);
        let late = self.order.happens(model.reorder);
        let held = Micros(self.order.range(0, model.reorder_by.0));
        let corrupt = self.bits.happens(model.corrupt);
        let bits = self.bits.draw();
        let lost = self.loss.happens(model.loss) | self.burst(now, model);
        if lost {
            return Fate::Dropped(Loss::Lost);
        }
        if model.mtu > 0 && len > model.mtu {
            return Fate::Dropped(Loss::TooLarge);
        }
        let Some(queued) = self.queue(now, len, model) else {
            return Fate::Dropped(Loss::Queue);
        };
        let first = queued + delay.0 + if late { held.0 } else { 0 };
        Fate::Arrives {
            after: Micros(first),
            again: twice.then_some(Micros(queued + second.0)),
            corrupt: corrupt.then_some(bits),
        }
    }

    /// Whether the packet is lost to a burst.
    fn burst(&mut self, now: u64, model: &LinkModel) -> bool {
        let drawn = self.loss.draw();
        let Some(bursts) = model.bursts else { return false };
        let mut at = match self.changes_at {
            Some(at) => at,
            None => now + self.states.exponential(bursts.good.0),
        };
        while at <= now {
            self.bad = !self.bad;
            let mean = if self.bad { bursts.bad } else { bursts.good };
            at += self.states.exponential(mean.0).max(1);
        }
        self.changes_at = Some(at);
        let loss = if self.bad { bursts.loss_bad } else { bursts.loss_good };
        drawn % u64::from(Chance::ALWAYS.ppm()) < u64::from(loss.ppm())
    }

    /// How long the packet waits for those before it and for its own bytes, unless the queue is
    /// full.
    fn queue(&mut self, now: u64, len: usize, model: &LinkModel) -> Option<u64> {
        if model.bytes_per_second == 0 {
            return Some(0);
        }
        let begins = self.free_at.max(now);
        let longest = if model.queue.0 == 0 { QUEUE_DEFAULT } else { model.queue };
        if begins - now > longest.0 {
            return None;
        }
        let takes = (len as u64).saturating_mul(1_000_000) / model.bytes_per_second;
        self.free_at = begins + takes;
        Some(self.free_at - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(seed: u64, model: &LinkModel, count: u64, every: u64) -> Vec<Fate> {
        let mut link = Link::new(seed, 0);
        (0..count).map(|n| link.pass(n * every, 1200, model)).collect()
    }

    fn share(fates: &[Fate], what: impl Fn(&Fate) -> bool) -> f64 {
        fates.iter().filter(|fate| what(fate)).count() as f64 / fates.len() as f64
    }

    fn dropped(fate: &Fate) -> bool {
        matches!(fate, Fate::Dropped(_))
    }

    #[test]
    fn the_default_link_is_perfect() {
        let untouched = Fate::Arrives { after: Micros(0), again: None, corrupt: None };
        assert!(fates(1, &LinkModel::default(), 1_000, 10).iter().all(|fate| *fate == untouched));
    }

    #[test]
    fn rates_are_as_told_and_repeat_by_seed() {
        let model = LinkModel {
            delay: Delay::Uniform(Micros::from_ms(5), Micros::from_ms(25)),
            loss: Chance::permille(300),
            duplicate: Chance::permille(100),
            corrupt: Chance::permille(50),
            ..LinkModel::default()
        };
        let seen = fates(1, &model, 50_000, 10);
        assert_eq!(seen, fates(1, &model, 50_000, 10));
        assert_ne!(seen, fates(2, &model, 50_000, 10));
        assert!((0.29..0.31).contains(&share(&seen, dropped)));
        let twice = share(&seen, |fate| matches!(fate, Fate::Arrives { again: Some(_), .. }));
        assert!((0.065..0.075).contains(&twice), "{twice}");
        let corrupt = share(&seen, |fate| matches!(fate, Fate::Arrives { corrupt: Some(_), .. }));
        assert!((0.032..0.038).contains(&corrupt), "{corrupt}");
        for fate in seen {
            let Fate::Arrives { after, .. } = fate else { continue };
            assert!((5_000..=25_000).contains(&after.0));
        }
    }

    #[test]
    fn switching_one_fault_on_shifts_no_other() {
        let plain = LinkModel { loss: Chance::permille(200), ..LinkModel::default() };
        let more = LinkModel {
            duplicate: Chance::permille(500),
            corrupt: Chance::permille(500),
            delay: Delay::Uniform(Micros(1), Micros(9_000)),
            ..plain.clone()
        };
        let lost = |model| fates(7, model, 5_000, 10).iter().map(dropped).collect::<Vec<_>>();
        assert_eq!(lost(&plain), lost(&more));
    }

    #[test]
    fn bursts_lose_their_share_and_come_in_runs() {
        let bursts = Bursts {
            good: Micros::from_ms(900),
            bad: Micros::from_ms(100),
            loss_good: Chance::NEVER,
            loss_bad: Chance::ALWAYS,
        };
        let model = LinkModel { bursts: Some(bursts), ..LinkModel::default() };
        assert!((bursts.mean_loss() - 0.1).abs() < 1e-9);
        let seen = fates(3, &model, 2_000_000, 1_000);
        let lost = share(&seen, dropped);
        assert!((0.09..0.11).contains(&lost), "{lost}");
        let begins = seen.windows(2).filter(|w| matches!(w, [a, b] if !dropped(a) && dropped(b)));
        let mean_run = lost * seen.len() as f64 / begins.count() as f64;
        assert!((80.0..120.0).contains(&mean_run), "runs of {mean_run} ms");
        // The states do not depend on what is sent.
        let sparse = fates(3, &model, 20_000, 100_000);
        assert!(seen.iter().step_by(100).zip(&sparse).all(|(a, b)| dropped(a) == dropped(b)));
    }

    #[test]
    fn bandwidth_queues_then_drops_the_tail() {
        let model = LinkModel { bytes_per_second: 100_000, ..LinkModel::default() };
        let mut link = Link::new(1, 0);
        let seen: Vec<Fate> = (0..100).map(|_| link.pass(0, 1_000, &model)).collect();
        let arrived: Vec<u64> = seen
            .iter()
            .filter_map(|fate| match fate {
                Fate::Arrives { after, .. } => Some(after.0),
                Fate::Dropped(loss) => {
                    assert_eq!(*loss, Loss::Queue);
                    None
                }
            })
            .collect();
        assert_eq!(arrived.len(), 26, "250 ms of 10 ms each, and the one that crosses");
        assert!(arrived.is_sorted());
        let fate = link.pass(1_000_000, 1_000, &model);
        assert_eq!(fate, Fate::Arrives { after: Micros(10_000), again: None, corrupt: None });
    }

    #[test]
    fn what_is_larger_than_the_mtu_vanishes() {
        let model = LinkModel { mtu: 1_200, ..LinkModel::default() };
        assert!(!dropped(&Link::new(1, 0).pass(0, 1_200, &model)));
        let fate = Link::new(1, 0).pass(0, 1_201, &model);
        assert_eq!(fate, Fate::Dropped(Loss::TooLarge));
    }

    #[test]
    fn a_flip_changes_one_byte_and_repeats() {
        for draw in 0..1_000 {
            let (mut once, mut again) = ([0u8; 40], [0u8; 40]);
            flip(&mut once, draw);
            flip(&mut again, draw);
            assert_eq!(once.iter().filter(|byte| **byte != 0).count(), 1, "by {draw}");
            assert_eq!(once, again);
        }
        flip(&mut [], 1);
    }

    #[test]
    fn pareto_has_its_median_and_its_cap() {
        let delay: Delay = "pareto 20ms 1.5 2s".parse().unwrap();
        let mut rng = Rng::new(1, 1);
        let mut drawn: Vec<u64> = (0..20_001).map(|_| delay.draw(&mut rng).0).collect();
        drawn.sort_unstable();
        // min * 2^(1/shape)
        let median = drawn.get(10_000).copied().unwrap_or(0);
        assert!((31_000..32_500).contains(&median), "{median}");
        assert!(drawn.iter().all(|delay| (20_000..=2_000_000).contains(delay)));
        assert_eq!(drawn.last(), Some(&2_000_000), "the tail reaches the cap");
    }

    #[test]
    fn a_model_is_written_and_read() {
        let text = r#"
            delay = "20ms..80ms"
            loss = 0.05
            bursts = { good = "10s", bad = "500ms", loss_bad = 0.8 }
            duplicate = 0.01
            corrupt = 0.001
            mtu = 1350
            bytes_per_second = 1_000_000
        "#;
        let model: LinkModel = toml::from_str(text).unwrap();
        assert_eq!(model.loss, Chance::permille(50));
        let again: LinkModel = toml::from_str(&toml::to_string(&model).unwrap()).unwrap();
        assert_eq!(again, model);
        let wrong = toml::from_str::<LinkModel>("delay = \"80ms..20ms\"").unwrap_err();
        assert!(wrong.to_string().contains("comes first"), "{wrong}");
        assert!(toml::from_str::<LinkModel>("losss = 0.1").is_err());
    }
}
