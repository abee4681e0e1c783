//! `$geoWithin` and `$geoIntersects`.

use sheaf_bson::{DocBuf, Element, Value};
use sheaf_errors::Result;

use crate::point::bad;
use crate::region::{Region, operand};
use crate::stored::Stored;

/// Which predicate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `$geoWithin`: the geometry is within the region.
    Within,
    /// `$geoIntersects`: the geometry and the region have a point in common.
    Intersects,
}

impl Kind {
    /// The operator's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Within => "$geoWithin",
            Kind::Intersects => "$geoIntersects",
        }
    }
}

/// A condition on a geometry.
#[derive(Debug)]
pub struct Predicate {
    kind: Kind,
    region: Region,
    source: DocBuf,
}

impl Predicate {
    /// Reads `$geoWithin: {...}`, `$within: {...}` or `$geoIntersects: {...}`.
    ///
    /// Errors: `BadValue`; what the meter says.
    pub fn parse(kind: Kind, element: Element<'_>) -> Result<Predicate> {
        let Some(operand) = operand(element.value()) else { return bad("geometry must be an object") };
        let mut region = None;
        for part in operand.iter() {
            if region.is_some() && element.key() == "$geoWithin" {
                return bad(format!(
                    "$geoWithin doesn't accept multiple shapes {}",
                    sheaf_bson::element_text(element.key(), element.value())
                ));
            }
            // An option of long ago, without effect.
            if part.key() != "$uniqueDocs" {
                region = Some(Region::parse(part)?);
            }
        }
        let Some(mut region) = region else { return bad("geo query doesn't have any geometry") };
        if kind == Kind::Within && !region.has_inside() {
            return bad(format!(
                "$within not supported with provided geometry: {}",
                sheaf_bson::element_text(element.key(), element.value())
            ));
        }
        if kind == Kind::Intersects {
            let Some(there) = region.onto_sphere() else {
                return bad(format!(
                    "$geoIntersect not supported with provided geometry: {}",
                    sheaf_bson::element_text(element.key(), element.value())
                ));
            };
            region = there;
        }
        Ok(Predicate { kind, region, source: operand.into() })
    }

    /// Which predicate.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What it asks about.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The operand as it was written.
    pub fn source(&self) -> &DocBuf {
        &self.source
    }

    /// Whether a value is a geometry that passes.
    ///
    /// Errors: what the meter says.
    pub fn matches(&self, value: Value<'_>) -> Result<bool> {
        if !matches!(value, Value::Document(_) | Value::Array(_)) {
            return Ok(false);
        }
        let Some(stored) = Stored::find(value)? else { return Ok(false) };
        Ok(match self.kind {
            Kind::Within => self.region.contains(stored),
            Kind::Intersects => self.region.intersects(stored),
        })
    }
}
