//! Latency histograms: their text form, their sums and their curves. Values are nanoseconds.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// A histogram's text that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("not a latency histogram: {0}")]
pub struct HistogramError(String);

/// The text form that results are kept in: V2 + DEFLATE, base64. Other HdrHistogram tools read it too.
pub fn encode_histogram(histogram: &Histogram<u64>) -> Result<String, HistogramError> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .map_err(|error| HistogramError(error.to_string()))?;
    Ok(STANDARD.encode(bytes))
}

/// Reads what [`encode_histogram`] wrote. An empty text is an empty histogram: the operation never ran.
pub fn decode_histogram(text: &str) -> Result<Histogram<u64>, HistogramError> {
    if text.is_empty() {
        return Histogram::new(3).map_err(|error| HistogramError(error.to_string()));
    }
    let bytes = STANDARD.decode(text).map_err(|error| HistogramError(error.to_string()))?;
    Deserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|error| HistogramError(format!("{error:?}")))
}

/// The sum of several histograms (repetitions, clients): each recorded value counts once.
pub fn merge_histograms<'a>(
    texts: impl IntoIterator<Item = &'a str>,
) -> Result<Histogram<u64>, HistogramError> {
    let mut sum: Option<Histogram<u64>> = None;
    for text in texts {
        let next = decode_histogram(text)?;
        sum = Some(match sum {
            None => next,
            Some(mut sum) => {
                sum.auto(true);
                sum.add(&next).map_err(|error| HistogramError(error.to_string()))?;
                sum
            }
        });
    }
    sum.map_or_else(|| decode_histogram(""), Ok)
}

/// One point of a latency-by-percentile curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Share of operations that were at least as fast, 0 ..= 1.
    pub quantile: f64,
    /// 1 / (1 - quantile): 10 at 90 %, 1000 at 99.9 %. For the worst value, the count of operations.
    pub inverse: f64,
    /// The latency in microseconds.
    pub us: f64,
}

/// Points of a curve per factor of ten of `1 / (1 - quantile)`.
const POINTS_PER_NINE: u32 = 12;

/// The latencies by percentile, evenly spaced over the logarithm of `1 / (1 - quantile)` as HDR plots draw them,
/// up to the worst value. No point claims more nines than the count of operations can carry.
pub fn percentile_curve(histogram: &Histogram<u64>) -> Vec<CurvePoint> {
    let count = histogram.len();
    let mut points = Vec::new();
    if count == 0 {
        return points;
    }
    for step in 0.. {
        let inverse = 10_f64.powf(f64::from(step) / f64::from(POINTS_PER_NINE));
        if inverse >= count as f64 {
            break;
        }
        let quantile = 1.0 - 1.0 / inverse;
        points.push(CurvePoint { quantile, inverse, us: histogram.value_at_quantile(quantile) as f64 / 1e3 });
    }
    points.push(CurvePoint { quantile: 1.0, inverse: count as f64, us: histogram.max() as f64 / 1e3 });
    points
}
