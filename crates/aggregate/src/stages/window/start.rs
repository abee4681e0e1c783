//! Starting a function on a partition.

use sheaf_bson::{RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::Result;
use sheaf_expr::Env;

use super::function::{Function, Kind, Way};
use super::rank::Ranking;
use super::removable::{
    Best, Covariance, Deviation, ExpMovingAvg, FirstLast, Integral, List, Locf, Mean, Percentiles, Removable,
    Scaler, Set, Top, Total,
};
use super::running::{LinearFill, Over, Running, Windowed};
use crate::accumulators;

impl Function {
    /// The function at the start of a partition.
    pub(super) fn start<'a>(&'a self, env: &Env<'a>) -> Result<Box<dyn Running>> {
        let grows = self.bounds.is_left_unbounded();
        let sliding = |function: Box<dyn Removable>| Over::Sliding(function);
        let over = match &self.kind {
            Kind::Rank(rank) => return Ok(Box::new(Ranking::new(*rank))),
            Kind::LinearFill => return Ok(Box::new(LinearFill::default())),
            Kind::Accumulator { init, make, way } => {
                let init = match init {
                    Some(expr) => expr.eval(RawDoc::EMPTY, env)?,
                    None => Value::Missing,
                };
                if grows {
                    Over::Accumulated { state: make(init)?, last: None }
                } else {
                    Over::Sliding(way.start(self.name, init, self.collator.as_ref())?)
                }
            }
            Kind::Covariance { sample } => sliding(Box::new(Covariance::new(*sample))),
            Kind::Integral { unit_millis } => sliding(Box::new(Integral::new(*unit_millis, grows))),
            Kind::ExpMovingAvg { alpha } => sliding(Box::new(ExpMovingAvg::new(*alpha))),
            Kind::Locf => sliding(Box::<Locf>::default()),
            Kind::MinMaxScaler { range } => sliding(Box::new(Scaler::new(range.clone(), grows))),
            Kind::First { default } => Over::First(default.clone()),
            Kind::Last => Over::Last,
            Kind::Derivative { unit_millis } => Over::Derivative(*unit_millis),
        };
        Ok(Box::new(Windowed::new(self.bounds.clone(), over)))
    }
}

impl Way {
    fn start(
        &self,
        name: &str,
        init: Value<'_>,
        collator: Option<&SharedCollator>,
    ) -> Result<Box<dyn Removable>> {
        let n = || {
            let has_n = name.ends_with('N');
            if has_n { accumulators::n_of(init).map(Some) } else { Ok(None) }
        };
        Ok(match self {
            // A `$count` adds ones.
            Way::Sum => Box::new(Total::default()),
            Way::Mean => Box::new(Mean::default()),
            Way::Deviation { sample } => Box::new(Deviation::new(*sample)),
            Way::List { flat } => Box::new(List::new(*flat)),
            Way::Set { flat } => Box::new(Set::new(*flat, collator.cloned())),
            Way::Best { largest } => Box::new(Best::new(*largest, n()?, collator.cloned())),
            Way::FirstLast { last } => Box::new(FirstLast::new(*last, accumulators::n_of(init)?)),
            Way::Top { sort_by, bottom } => Box::new(Top::new(sort_by.clone(), *bottom, n()?)),
            Way::Percentiles(wanted) => Box::new(Percentiles::new(wanted.clone())),
        })
    }
}
