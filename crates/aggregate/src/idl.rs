//! Arguments of stages whose fields have declared types, with the errors that all of these share.

use sheaf_bson::{RawDoc, Type, Value};
use sheaf_errors::{Code, Result, bail};

/// The fields of a stage's argument, each at most once; null counts as not given unless the field takes any value.
pub(crate) struct Fields<'a> {
    place: &'static str,
    spec: RawDoc<'a>,
}

impl<'a> Fields<'a> {
    /// Checks the names.
    ///
    /// Errors: 40415 for a name that is not `known`, 40413 for one that stands twice; those of a [tick](sheaf_meter::tick).
    pub(crate) fn new(place: &'static str, spec: RawDoc<'a>, known: &[&str]) -> Result<Fields<'a>> {
        // There may be one of these for each field of a stage.
        sheaf_meter::tick(4)?;
        for (at, field) in spec.iter().enumerate() {
            let name = field.key();
            if !known.contains(&name) {
                bail!(40415, "BSON field '{place}.{name}' is an unknown field.");
            }
            if spec.iter().take(at).any(|earlier| earlier.key() == name) {
                bail!(40413, "BSON field '{place}.{name}' is a duplicate field");
            }
        }
        Ok(Fields { place, spec })
    }

    /// A field that takes any value.
    pub(crate) fn any(&self, name: &str) -> Option<Value<'a>> {
        self.spec.get(name)
    }

    /// A field of one of these types, if it was given.
    ///
    /// Errors: `TypeMismatch`.
    pub(crate) fn optional(&self, name: &str, types: &[Type]) -> Result<Option<Value<'a>>> {
        match self.spec.get(name) {
            None | Some(Value::Null | Value::Undefined) => Ok(None),
            Some(value) => check_type(&format!("{}.{name}", self.place), value, types).map(Some),
        }
    }

    /// The same for a field that must be given.
    ///
    /// Errors: 40414, `TypeMismatch`.
    pub(crate) fn required(&self, name: &str, types: &[Type]) -> Result<Value<'a>> {
        match self.optional(name, types)? {
            Some(value) => Ok(value),
            None => self.missing(name),
        }
    }

    /// A flag that is a boolean if it is there at all: null is none.
    ///
    /// Errors: `TypeMismatch`.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.spec.get(name) {
            None => Ok(None),
            Some(value) => {
                let flag = check_type(&format!("{}.{name}", self.place), value, &[Type::Bool])?;
                Ok(flag.as_bool())
            }
        }
    }

    /// The error for a field that was not given.
    pub(crate) fn missing<T>(&self, name: &str) -> Result<T> {
        bail!(40414, "BSON field '{}.{name}' is missing but a required field", self.place)
    }

    /// A document, if it was given.
    pub(crate) fn document(&self, name: &str) -> Result<Option<RawDoc<'a>>> {
        Ok(self.optional(name, &[Type::Document])?.and_then(|value| value.as_doc()))
    }

    /// A list of strings, if it was given.
    pub(crate) fn strings(&self, name: &str) -> Result<Option<Vec<&'a str>>> {
        let Some(Value::Array(items)) = self.optional(name, &[Type::Array])? else { return Ok(None) };
        let mut strings = Vec::new();
        for (at, item) in items.values().enumerate() {
            let item = check_type(&format!("{}.{name}.{at}", self.place), item, &[Type::String])?;
            strings.extend(item.as_str());
        }
        Ok(Some(strings))
    }
}

fn check_type<'a>(place: &str, value: Value<'a>, types: &[Type]) -> Result<Value<'a>> {
    if types.contains(&value.kind()) {
        return Ok(value);
    }
    match types {
        [only] => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{place}' is the wrong type '{}', expected type '{}'",
            value.type_name(),
            only.name()
        ),
        _ => {
            let names: Vec<_> = types.iter().map(|kind| kind.name()).collect();
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field '{place}' is the wrong type '{}', expected types '[{}]'",
                value.type_name(),
                names.join(", ")
            )
        }
    }
}

/// The types of numbers.
pub(crate) const NUMBERS: &[Type] = &[Type::Int64, Type::Double, Type::Int32, Type::Decimal128];
