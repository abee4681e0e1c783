//! Geometry as MongoDB understands it: pure functions of values.
//!
//! - [`Stored`]: a geometry in a document, GeoJSON or a legacy pair; what does not parse is no geometry.
//! - [`Region`]: what a query asks of it: `$geometry`, `$box`, `$center`, `$centerSphere`, `$polygon`.
//! - [`Predicate`]: `$geoWithin` and `$geoIntersects`, parsed and decided.
//! - [`Near`]: `$near`, `$nearSphere` and `$geoNear`: a centre, a metric, distances.
//! - [`Indexing`]: the keys of geometries in `2d` and `2dsphere` indexes, and which of them a query has to look at.
//!
//! There are two worlds. In the plane, points are pairs of any numbers, shapes hold points only, and distance is Euclid's. On the
//! sphere, edges are geodesics and shapes may hold each other; that world is S2's, by the crate `s2rst`. A legacy pair lives in the
//! plane and is taken to the sphere where a query asks for it; a GeoJSON point lives on the sphere and has a place in the plane.

#![forbid(unsafe_code)]

mod cells;
mod crossings;
mod geojson;
mod grid;
mod indexing;
mod near;
mod plane;
mod point;
mod predicate;
mod region;
mod shape;
mod stored;
#[cfg(test)]
mod tests;

pub use grid::Grid;
pub use indexing::{Indexing, KeyRange, is_geo_kind};
pub use near::{EARTH_RADIUS, Metric, Near};
pub use plane::{Circle, PlaneBox, PlanePolygon};
pub use point::{PlanePoint, is_lng_lat};
pub use predicate::{Kind, Predicate};
pub use region::Region;
pub use shape::{Area, Shape};
pub use stored::Stored;
