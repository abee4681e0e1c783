//! What shards gain, on one machine. Servers that share its processors slow each other down, so three figures are told:
//!
//! - *capacity*: transactions per processor second of the busiest shard. With a machine for each shard it would be full at
//!   this rate; what generator, routers and the other shards take is left out.
//! - *throttled*: the rate with every server that holds data capped, so that all of them together fit the machine.
//! - *raw*: the rate with all of them sharing it.

use std::collections::BTreeMap;

use crate::context::Context;
use crate::error::Result;
use crate::measure::cap::Cap;
use crate::measure::{Measured, Totals};
use crate::part::Part;
use crate::workload::Figure;

/// What a run in a sharded cluster has shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scaling {
    raw: f64,
    made: u64,
    /// Processor seconds of the busiest server of a shard; 0 where they are not ours to look at.
    busiest_s: f64,
    routers_s: f64,
    pub throttled: Option<f64>,
}

impl Scaling {
    /// Of the run that has just ended.
    pub fn of(context: &Context, measured: &Measured) -> Scaling {
        let mut spent: BTreeMap<Part, Vec<f64>> = BTreeMap::new();
        for (member, seconds) in context.members.iter().zip(context.meter.each()) {
            spent.entry(member.part).or_default().push(seconds.unwrap_or(0.0));
        }
        let shards = spent.iter().filter(|(part, _)| matches!(part, Part::Shard(_)));
        let busiest_s = shards.flat_map(|(_, seconds)| seconds).copied().fold(0.0, f64::max);
        let routers_s = spent.get(&Part::Router).map_or(0.0, |seconds| seconds.iter().sum());
        let made = measured.operation("transfer").count();
        Scaling { raw: measured.rate("transfer"), made, busiest_s, routers_s, throttled: None }
    }

    /// The columns of the table.
    pub fn figures(&self, transfer: &Totals) -> Vec<Figure> {
        let each_us = |seconds: f64| seconds * 1e6 / self.made.max(1) as f64;
        let mut figures = Vec::new();
        if self.busiest_s > 0.0 {
            figures.push(Figure::higher("capacity", "1/s", self.made as f64 / self.busiest_s));
        }
        figures.extend(self.throttled.map(|rate| Figure::higher("throttled", "1/s", rate)));
        figures.push(Figure::higher("raw", "1/s", self.raw));
        if self.busiest_s > 0.0 {
            figures.push(Figure::lower("busiest shard", "us", each_us(self.busiest_s)));
            figures.push(Figure::lower("routers", "us", each_us(self.routers_s)));
        }
        figures.push(Figure::lower("median", "us", transfer.percentile_us(50.0)));
        figures.push(Figure::lower("p99", "us", transfer.percentile_us(99.0)));
        figures.push(Figure::plain("retries", "", transfer.retries as f64));
        figures
    }
}

/// Caps every server that holds data.
pub(super) fn cap(context: &Context, processors: f64) -> Result<Vec<Cap>> {
    let servers = context.members.iter().zip(context.meter.servers());
    let data = servers.filter(|(member, _)| member.part.holds_data());
    data.filter_map(|(_, server)| server.pid()).map(|pid| Cap::new(pid, processors)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_that_of_the_busiest_shard() {
        let scaling =
            Scaling { raw: 500.0, made: 10_000, busiest_s: 4.0, routers_s: 2.0, throttled: Some(300.0) };
        let figures = scaling.figures(&Totals::default());
        let value = |name: &str| figures.iter().find(|figure| figure.name == name).map(|figure| figure.value);
        assert_eq!(value("capacity"), Some(2500.0));
        assert_eq!((value("throttled"), value("raw")), (Some(300.0), Some(500.0)));
        assert_eq!((value("busiest shard"), value("routers")), (Some(400.0), Some(200.0)));
        let unknown = Scaling { busiest_s: 0.0, throttled: None, ..scaling }.figures(&Totals::default());
        assert_eq!(unknown[0].name, "raw");
    }
}
